//! A plain proxy: what hyper costs, and nothing else. It passes a request on as it came and streams
//! both bodies; it looks at no header, has no timeout, no limit and no log.

use clap::Args;
use http::{
    Request, Response, StatusCode,
    uri::{Authority, PathAndQuery, Scheme, Uri},
};
use http_body_util::{BodyExt, Empty, combinators::BoxBody};
use hyper::{body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::{
    client::legacy::{Client, connect::HttpConnector},
    rt::{TokioExecutor, TokioIo},
};
use tokio::net::{TcpListener, TcpStream};

use crate::process;

/// Where to pass requests on.
#[derive(Args)]
pub(crate) struct Proxy {
    #[arg(long)]
    upstream: Authority,
}

type ToUpstream = Client<HttpConnector, Incoming>;

/// Serves on a free port, says which, and ends with its input.
pub(crate) async fn serve(proxy: &Proxy) -> anyhow::Result<()> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    process::serves(&listener)?;
    let mut connector = HttpConnector::new();
    connector.set_nodelay(true);
    let client: ToUpstream = Client::builder(TokioExecutor::new()).build(connector);
    loop {
        let (stream, _) = listener.accept().await?;
        stream.set_nodelay(true)?;
        tokio::spawn(connection(stream, client.clone(), proxy.upstream.clone()));
    }
}

async fn connection(stream: TcpStream, client: ToUpstream, upstream: Authority) {
    let service = service_fn(|request| pass(&client, &upstream, request));
    if let Err(error) = http1::Builder::new().serve_connection(TokioIo::new(stream), service).await
    {
        eprintln!("proxy: {error}");
    }
}

async fn pass(
    client: &ToUpstream,
    upstream: &Authority,
    mut request: Request<Incoming>,
) -> anyhow::Result<Response<BoxBody<bytes::Bytes, hyper::Error>>> {
    let mut target = std::mem::take(request.uri_mut()).into_parts();
    target.scheme = Some(Scheme::HTTP);
    target.authority = Some(upstream.clone());
    target.path_and_query.get_or_insert(PathAndQuery::from_static("/"));
    *request.uri_mut() = Uri::from_parts(target)?;
    match client.request(request).await {
        Ok(response) => Ok(response.map(BodyExt::boxed)),
        Err(error) => {
            eprintln!("proxy: {error}");
            let nothing = Empty::new().map_err(|never| match never {}).boxed();
            Ok(Response::builder().status(StatusCode::BAD_GATEWAY).body(nothing)?)
        }
    }
}
