//! The same service on a real socket, and the clients that talk to it: HTTP/1.1, HTTP/2, and bytes.

use std::net::SocketAddr;

use axum::Router;
use bytes::Bytes;
use http::{Request, Response, Uri};
use http_body_util::{BodyExt as _, Full, combinators::UnsyncBoxBody};
use hyper::{
    body::Incoming,
    client::conn::{http1, http2},
};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
};

use crate::service::Answer;

pub(crate) type Upload = UnsyncBoxBody<Bytes, std::io::Error>;

/// A body that is known as a whole.
pub(crate) fn whole(body: impl Into<Bytes>) -> Upload {
    Full::new(body.into()).map_err(|never| match never {}).boxed_unsync()
}

/// A server of axum on a port of its own.
pub(crate) struct Server {
    address: SocketAddr,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Protocol {
    Http1,
    Http2,
}

impl Protocol {
    pub(crate) const BOTH: [Protocol; 2] = [Protocol::Http1, Protocol::Http2];
}

/// One connection.
pub(crate) enum Client {
    Http1(http1::SendRequest<Upload>),
    Http2(http2::SendRequest<Upload>),
}

impl Server {
    pub(crate) async fn start(app: Router) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("an address");
        tokio::spawn(async move { axum::serve(listener, app).await });
        Server { address }
    }

    async fn connect(&self) -> TcpStream {
        TcpStream::connect(self.address).await.expect("the server listens")
    }

    pub(crate) async fn client(&self, protocol: Protocol) -> Client {
        let io = TokioIo::new(self.connect().await);
        match protocol {
            Protocol::Http1 => {
                let (client, connection) = http1::handshake(io).await.expect("a handshake");
                tokio::spawn(connection);
                Client::Http1(client)
            }
            Protocol::Http2 => {
                let (client, connection) =
                    http2::handshake(TokioExecutor::new(), io).await.expect("a handshake");
                tokio::spawn(connection);
                Client::Http2(client)
            }
        }
    }

    pub(crate) async fn raw(&self) -> Raw {
        Raw { stream: self.connect().await, read: Vec::new() }
    }
}

impl Client {
    /// Sends a request; the response may come before its body ended.
    pub(crate) async fn begin(&mut self, request: Request<Upload>) -> Response<Incoming> {
        let (mut parts, body) = request.into_parts();
        let path = parts.uri.path_and_query().expect("a path").as_str().to_owned();
        match self {
            Client::Http1(client) => {
                parts.headers.insert("host", http::HeaderValue::from_static("shop.example"));
                let request = Request::from_parts(parts, body);
                client.ready().await.expect("an open connection");
                client.send_request(request).await.expect("a response")
            }
            Client::Http2(client) => {
                let uri = format!("http://shop.example{path}");
                parts.uri = uri.parse::<Uri>().expect("an address");
                parts.version = http::Version::HTTP_2;
                let request = Request::from_parts(parts, body);
                client.ready().await.expect("an open connection");
                client.send_request(request).await.expect("a response")
            }
        }
    }

    pub(crate) async fn send(&mut self, request: Request<Upload>) -> Answer {
        Answer::read(self.begin(request).await).await
    }
}

/// A connection on which a test writes and reads bytes.
pub(crate) struct Raw {
    stream: TcpStream,
    read: Vec<u8>,
}

impl Raw {
    pub(crate) async fn write(&mut self, bytes: impl AsRef<[u8]>) {
        self.stream.write_all(bytes.as_ref()).await.expect("the server reads");
    }

    /// The next response, interim ones too. `None` when the server closed the connection.
    pub(crate) async fn response(&mut self) -> Option<RawResponse> {
        let end = loop {
            match self.read.windows(4).position(|four| four == b"\r\n\r\n") {
                Some(end) => break end + 4,
                None if !self.more().await => return None,
                None => {}
            }
        };
        let head = String::from_utf8(self.read.drain(..end).collect()).expect("text");
        let length = head
            .lines()
            .find_map(|line| line.to_lowercase().strip_prefix("content-length: ")?.parse().ok())
            .unwrap_or(0);
        while self.read.len() < length && self.more().await {}
        let body = String::from_utf8(self.read.drain(..length).collect()).expect("text");
        let status = head.split(' ').nth(1).and_then(|status| status.parse().ok());
        Some(RawResponse { status: status.expect("a status"), head: head.to_lowercase(), body })
    }

    async fn more(&mut self) -> bool {
        let mut buffer = [0; 8192];
        let len = self.stream.read(&mut buffer).await.unwrap_or(0);
        self.read.extend_from_slice(&buffer[..len]);
        len > 0
    }
}

#[derive(Debug)]
pub(crate) struct RawResponse {
    pub(crate) status: u16,
    /// Status line and headers in lower case.
    pub(crate) head: String,
    pub(crate) body: String,
}

impl RawResponse {
    pub(crate) fn closes(&self) -> bool {
        self.head.contains("\r\nconnection: close\r\n")
    }
}
