//! One request at a time to the admin API, with errors that say what to do.

use std::{fmt, time::Duration};

use anyhow::{Context as _, Result, bail};
use bytes::Bytes;
use http::{Method, Request, Response, StatusCode, Uri, header};
use http_body_util::{BodyExt as _, Full};
use hyper::{body::Incoming, client::conn::http1};
use hyper_util::rt::TokioIo;
use serde::{Serialize, de::DeserializeOwned};
use tokio::{net::TcpStream, time::timeout};

use super::{Output, Server};

/// A server that is there takes connections within this.
const CONNECT_TIME_MAX: Duration = Duration::from_secs(5);

pub(super) struct Client {
    authority: String,
    url: String,
    token: Option<String>,
    pub(super) output: Output,
}

impl Client {
    pub(super) fn new(server: &Server) -> Result<Client> {
        let url = server.admin.trim_end_matches('/');
        let wrong = || format!("--admin `{url}` is not a URL such as http://127.0.0.1:8081");
        let uri: Uri = url.parse().with_context(wrong)?;
        if uri.scheme_str() == Some("https") {
            bail!(
                "--admin `{url}` is https, and the admin listener speaks http; use a tunnel to it"
            );
        }
        let authority = uri.authority().filter(|_| uri.scheme_str() == Some("http"));
        let authority = authority.with_context(wrong)?.to_string();
        let output = server.output;
        Ok(Client { authority, url: url.to_owned(), token: server.token.clone(), output })
    }

    pub(super) async fn get<T: DeserializeOwned>(
        &self,
        path: &str,
        parameters: &[(String, String)],
    ) -> Result<T> {
        let answer = self.send(Method::GET, path, parameters, None).await?;
        read(answer).await
    }

    pub(super) async fn post<T: DeserializeOwned>(
        &self,
        path: &str,
        document: &impl Serialize,
    ) -> Result<T> {
        let body = Bytes::from(serde_json::to_vec(document)?);
        let answer = self.send(Method::POST, path, &[], Some(body)).await?;
        read(answer).await
    }

    /// Sends a request; an answer that is a refusal becomes an error.
    pub(super) async fn send(
        &self,
        method: Method,
        path: &str,
        parameters: &[(String, String)],
        body: Option<Bytes>,
    ) -> Result<Response<Incoming>> {
        let query: String =
            form_urlencoded::Serializer::new(String::new()).extend_pairs(parameters).finish();
        let query = if query.is_empty() { query } else { format!("?{query}") };
        let mut request = Request::builder()
            .method(method)
            .uri(format!("/api/v1{path}{query}"))
            .header(header::HOST, &self.authority);
        if let Some(token) = &self.token {
            request = request.header(header::AUTHORIZATION, format!("Bearer {token}"));
        }
        if body.is_some() {
            request = request.header(header::CONTENT_TYPE, "application/json");
        }
        let request = request.body(Full::new(body.unwrap_or_default()));
        let answer =
            self.exchange(request.context("the token cannot be sent as a header")?).await?;
        if answer.status().is_success() {
            return Ok(answer);
        }
        self.refused(answer).await
    }

    async fn exchange(&self, request: Request<Full<Bytes>>) -> Result<Response<Incoming>> {
        let address = match self.authority.rsplit_once(':') {
            Some((_, port)) if port.parse::<u16>().is_ok() => self.authority.clone(),
            _ => format!("{}:80", self.authority),
        };
        let unreachable = || {
            format!(
                "no server answers at {}; is `onceward serve` running, and is --admin (or \
                 ONCEWARD_ADMIN) its admin address?",
                self.url
            )
        };
        let stream = timeout(CONNECT_TIME_MAX, TcpStream::connect(address)).await;
        let stream = stream.with_context(unreachable)?.with_context(unreachable)?;
        let (mut sender, connection) =
            http1::handshake(TokioIo::new(stream)).await.with_context(unreachable)?;
        // It ends with the answer.
        tokio::spawn(connection);
        sender.send_request(request).await.with_context(unreachable)
    }

    async fn refused<T>(&self, answer: Response<Incoming>) -> Result<T> {
        let status = answer.status();
        if status == StatusCode::UNAUTHORIZED {
            bail!(
                "the server at {} does not know this token; set ONCEWARD_ADMIN_TOKEN to the one it \
                 was started with, or to the one it printed at its start",
                self.url
            );
        }
        let body = answer.into_body().collect().await.map(|body| body.to_bytes());
        let document: serde_json::Value =
            body.ok().and_then(|body| serde_json::from_slice(&body).ok()).unwrap_or_default();
        let (Some(code), Some(detail)) = (document["code"].as_str(), document["detail"].as_str())
        else {
            bail!("{} answered {status}; is it the admin listener of onceward?", self.url);
        };
        let state = document["state"].as_str().map(|state| format!(" The record is {state}."));
        let until = document["not_before"].as_str().map(|at| format!(" Not before {at}."));
        let detail = format!("{detail}{}{}", state.unwrap_or_default(), until.unwrap_or_default());
        Err(Refusal { code: code.to_owned(), detail }.into())
    }

    /// Whether the server refused with this code.
    pub(super) fn is_refusal(error: &anyhow::Error, code: &str) -> bool {
        error.downcast_ref::<Refusal>().is_some_and(|refusal| refusal.code == code)
    }
}

/// What the server answered instead.
#[derive(Debug)]
struct Refusal {
    code: String,
    detail: String,
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.code, self.detail)
    }
}

impl std::error::Error for Refusal {}

async fn read<T: DeserializeOwned>(answer: Response<Incoming>) -> Result<T> {
    let body = answer.into_body().collect().await.context("the answer was cut off")?;
    let read = serde_json::from_slice(&body.to_bytes());
    read.context("the answer is not what this version expects; is the server of another version?")
}
