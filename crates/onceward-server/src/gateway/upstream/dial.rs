//! New connections to upstream: TCP, and TLS over it.

use std::{io, sync::Arc};

use anyhow::{Context as _, Result};
use http::Uri;
use hyper_util::client::legacy::connect::HttpConnector;
use rustls::{ClientConfig, pki_types::ServerName};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_rustls::TlsConnector;
use tower_service::Service as _;

use crate::{config::UpstreamSettings, tls};

/// What is spoken on a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Protocol {
    Http1,
    Http2,
}

/// Makes connections.
pub(crate) trait Dial: Send + Sync + 'static {
    type Stream: AsyncRead + AsyncWrite + Send + Unpin + 'static;

    /// A new connection. Nothing of a request was written when it fails.
    fn dial(
        &self,
        only_http1: bool,
    ) -> impl Future<Output = io::Result<(Self::Stream, Protocol)>> + Send;

    /// Whether many requests may share a connection: then it is not worth to open many at once.
    fn may_share(&self) -> bool;
}

/// Dials over the network.
pub(crate) struct Network {
    address: Uri,
    connector: HttpConnector,
    tls: Option<Tls>,
    http2: Option<bool>,
}

struct Tls {
    name: ServerName<'static>,
    config: Arc<ClientConfig>,
    only_http1: Arc<ClientConfig>,
}

impl Network {
    pub(super) fn new(address: Uri, settings: &UpstreamSettings) -> Result<Self> {
        let mut connector = HttpConnector::new();
        connector.set_nodelay(true);
        connector.set_connect_timeout(Some(settings.connect_time_max));
        connector.enforce_http(false);
        let tls = match address.scheme_str() {
            Some("https") => {
                let host = address.host().unwrap_or_default();
                let host = host.trim_start_matches('[').trim_end_matches(']').to_owned();
                let name = ServerName::try_from(host);
                let name = name.context("the upstream's name cannot be in a certificate")?;
                let (config, only_http1) = tls::client(settings)?;
                Some(Tls { name, config, only_http1 })
            }
            _ => None,
        };
        Ok(Network { address, connector, tls, http2: settings.http2 })
    }
}

/// What bytes go through.
pub(crate) trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}
impl<S: AsyncRead + AsyncWrite + Send + Unpin> Stream for S {}

impl Dial for Network {
    type Stream = Box<dyn Stream>;

    async fn dial(&self, only_http1: bool) -> io::Result<(Box<dyn Stream>, Protocol)> {
        let mut connector = self.connector.clone();
        let stream = connector.call(self.address.clone()).await.map_err(io::Error::other)?;
        let stream = stream.into_inner();
        let Some(Tls { name, config, only_http1: without_http2 }) = &self.tls else {
            let http2 = self.http2 == Some(true) && !only_http1;
            let protocol = if http2 { Protocol::Http2 } else { Protocol::Http1 };
            return Ok((Box::new(stream), protocol));
        };
        let config = if only_http1 { without_http2 } else { config };
        let connector = TlsConnector::from(Arc::clone(config));
        let stream = connector.connect(name.clone(), stream).await?;
        let protocol = match stream.get_ref().1.alpn_protocol() {
            Some(chosen) if chosen == tls::HTTP2 => Protocol::Http2,
            // It was asked for, and the other side has never heard of it.
            _ if self.http2 == Some(true) && !only_http1 => {
                return Err(io::Error::other("upstream does not speak HTTP/2"));
            }
            _ => Protocol::Http1,
        };
        Ok((Box::new(stream), protocol))
    }

    fn may_share(&self) -> bool {
        match &self.tls {
            Some(_) => self.http2 != Some(false),
            None => self.http2 == Some(true),
        }
    }
}
