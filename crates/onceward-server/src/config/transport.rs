//! `[tls]`, `[upstream]` and `[limits]`: how bytes come in and go out, and how many.

use std::{path::PathBuf, time::Duration};

use anyhow::{Context as _, Result, bail, ensure};
use http::Uri;
use schemars::JsonSchema;
use serde::Deserialize;

use super::{duration, one_of, secret::Text};

#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct TlsFile {
    /// The certificate chain, PEM. With `key_file`, clients speak TLS to the gateway.
    pub(crate) cert_file: Option<Text>,
    /// The private key of it, PEM.
    pub(crate) key_file: Option<Text>,
}

#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct UpstreamFile {
    /// Whether upstream is spoken to in HTTP/2. By default what it chooses under TLS, and HTTP/1.1
    /// without.
    pub(crate) http2: Option<bool>,
    /// Whom to believe instead of the system's authorities, PEM.
    pub(crate) ca_file: Option<Text>,
    /// Who the gateway is, for upstreams that ask: a certificate chain, PEM.
    pub(crate) client_cert_file: Option<Text>,
    /// The private key of it, PEM.
    pub(crate) client_key_file: Option<Text>,
    /// How long a connection may take. `5s` by default.
    pub(crate) connect_timeout: Option<Text>,
    /// How long an unprotected request waits for the head of its answer. `60s` by default.
    pub(crate) first_byte_timeout: Option<Text>,
    /// How long an unprotected request may take in all. Not limited by default.
    pub(crate) total_timeout: Option<Text>,
    /// `make`, for requests without one, or `pass`. `make` by default.
    pub(crate) traceparent: Option<Text>,
}

#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct LimitsFile {
    /// Header lines of a request. 100 by default.
    pub(crate) headers: Option<usize>,
    /// Bytes of the head of a request. 65536 by default.
    pub(crate) head_bytes: Option<usize>,
    /// Connections at a time. 10000 by default.
    pub(crate) connections: Option<usize>,
    /// Bytes of bodies of protected requests in memory, all together. 256 MiB by default.
    pub(crate) buffered_bytes: Option<usize>,
    /// How long the head of a request may take. `10s` by default.
    pub(crate) head_timeout: Option<Text>,
    /// How long the body of a protected request may take. `30s` by default.
    pub(crate) body_timeout: Option<Text>,
    /// How long a connection may make no progress. `60s` by default.
    pub(crate) stall_timeout: Option<Text>,
    /// Requests at a time on an HTTP/2 connection. 100 by default.
    pub(crate) http2_streams: Option<u32>,
    /// Requests that an HTTP/2 client may take back unseen; more end the connection. 20 by default.
    pub(crate) http2_resets: Option<usize>,
}

/// A certificate chain and its private key, both PEM.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct KeyPair {
    pub(crate) cert_file: PathBuf,
    pub(crate) key_file: PathBuf,
}

/// How upstream is spoken to.
#[derive(Clone, Debug)]
pub(crate) struct UpstreamSettings {
    /// `None`: what upstream chooses under TLS, and HTTP/1.1 without.
    pub(crate) http2: Option<bool>,
    /// Whom to believe instead of the system's authorities.
    pub(crate) ca_file: Option<PathBuf>,
    /// Who we are, for upstreams that ask.
    pub(crate) client: Option<KeyPair>,
    pub(crate) connect_time_max: Duration,
    /// Until the head of an answer to an unprotected request.
    pub(crate) first_byte_time_max: Duration,
    /// Until the end of an answer to an unprotected request.
    pub(crate) total_time_max: Option<Duration>,
    /// Whether requests without `traceparent` get one.
    pub(crate) makes_traceparent: bool,
}

/// What one client, and all together, may take up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Limits {
    pub(crate) headers_max: usize,
    pub(crate) head_bytes_max: usize,
    pub(crate) connections_max: usize,
    /// Bodies of protected requests that are in memory, all together.
    pub(crate) buffered_bytes_max: usize,
    pub(crate) head_time_max: Duration,
    /// For the whole body of a protected request.
    pub(crate) body_time_max: Duration,
    /// Without any progress, in either direction.
    pub(crate) stall_time_max: Duration,
    pub(crate) http2_streams_max: u32,
    /// Streams that a client reset before we looked at them; more end the connection.
    pub(crate) http2_resets_max: usize,
}

impl Default for UpstreamSettings {
    fn default() -> Self {
        UpstreamSettings {
            http2: None,
            ca_file: None,
            client: None,
            connect_time_max: Duration::from_secs(5),
            first_byte_time_max: Duration::from_secs(60),
            total_time_max: None,
            makes_traceparent: true,
        }
    }
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            headers_max: 100,
            head_bytes_max: 64 << 10,
            connections_max: 10_000,
            buffered_bytes_max: 256 << 20,
            head_time_max: Duration::from_secs(10),
            body_time_max: Duration::from_secs(30),
            stall_time_max: Duration::from_secs(60),
            http2_streams_max: 100,
            http2_resets_max: 20,
        }
    }
}

pub(super) fn tls(file: &TlsFile) -> Result<Option<KeyPair>> {
    key_pair("tls.cert_file", &file.cert_file, "tls.key_file", &file.key_file)
}

pub(super) fn upstream(file: &UpstreamFile, address: &Uri) -> Result<UpstreamSettings> {
    let defaults = UpstreamSettings::default();
    let client = key_pair(
        "upstream.client_cert_file",
        &file.client_cert_file,
        "upstream.client_key_file",
        &file.client_key_file,
    )?;
    let of_tls = file.ca_file.is_some() || client.is_some();
    ensure!(
        !of_tls || address.scheme_str() == Some("https"),
        "upstream.ca_file and upstream.client_cert_file have a meaning only with an https:// \
         upstream"
    );
    let traceparent = [("make", true), ("pass", false)];
    Ok(UpstreamSettings {
        http2: file.http2,
        ca_file: file.ca_file.as_ref().map(|path| path.as_str().into()),
        client,
        connect_time_max: time("upstream.connect_timeout", &file.connect_timeout)?
            .unwrap_or(defaults.connect_time_max),
        first_byte_time_max: time("upstream.first_byte_timeout", &file.first_byte_timeout)?
            .unwrap_or(defaults.first_byte_time_max),
        total_time_max: time("upstream.total_timeout", &file.total_timeout)?,
        makes_traceparent: match &file.traceparent {
            Some(text) => one_of("upstream.traceparent", text.as_str(), &traceparent)?,
            None => defaults.makes_traceparent,
        },
    })
}

pub(super) fn limits(file: &LimitsFile) -> Result<Limits> {
    let defaults = Limits::default();
    let limits = Limits {
        headers_max: file.headers.unwrap_or(defaults.headers_max),
        head_bytes_max: file.head_bytes.unwrap_or(defaults.head_bytes_max),
        connections_max: file.connections.unwrap_or(defaults.connections_max),
        buffered_bytes_max: file.buffered_bytes.unwrap_or(defaults.buffered_bytes_max),
        head_time_max: time("limits.head_timeout", &file.head_timeout)?
            .unwrap_or(defaults.head_time_max),
        body_time_max: time("limits.body_timeout", &file.body_timeout)?
            .unwrap_or(defaults.body_time_max),
        stall_time_max: time("limits.stall_timeout", &file.stall_timeout)?
            .unwrap_or(defaults.stall_time_max),
        http2_streams_max: file.http2_streams.unwrap_or(defaults.http2_streams_max),
        http2_resets_max: file.http2_resets.unwrap_or(defaults.http2_resets_max),
    };
    ensure!(limits.headers_max >= 16, "limits.headers must be at least 16");
    // hyper reads into a buffer of no less.
    let head_bytes = (8 << 10)..=(1 << 20);
    ensure!(
        head_bytes.contains(&limits.head_bytes_max),
        "limits.head_bytes must be from {} to {}",
        head_bytes.start(),
        head_bytes.end()
    );
    ensure!(limits.connections_max >= 1, "limits.connections must be at least 1");
    ensure!(limits.http2_streams_max >= 1, "limits.http2_streams must be at least 1");
    Ok(limits)
}

fn key_pair(
    cert: &str,
    cert_file: &Option<Text>,
    key: &str,
    key_file: &Option<Text>,
) -> Result<Option<KeyPair>> {
    match (cert_file, key_file) {
        (Some(cert_file), Some(key_file)) => Ok(Some(KeyPair {
            cert_file: cert_file.as_str().into(),
            key_file: key_file.as_str().into(),
        })),
        (None, None) => Ok(None),
        _ => bail!("{cert} and {key} need each other; give both or neither"),
    }
}

/// Not zero: nothing would ever be in time.
fn time(key: &str, text: &Option<Text>) -> Result<Option<Duration>> {
    let Some(text) = text else { return Ok(None) };
    let parsed = duration::parse(text.as_str()).with_context(|| key.to_owned())?;
    ensure!(!parsed.is_zero(), "{key} must be more than 0");
    Ok(Some(parsed))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn upstream_of(toml: &str, address: &'static str) -> Result<UpstreamSettings> {
        upstream(&toml::from_str(toml).expect("TOML"), &Uri::from_static(address))
    }

    fn limits_of(toml: &str) -> Result<Limits> {
        limits(&toml::from_str(toml).expect("TOML"))
    }

    #[test]
    fn what_is_not_said_is_as_documented() {
        assert_eq!(limits_of("").expect("valid"), Limits::default());
        let upstream = upstream_of("", "http://bank").expect("valid");
        assert_eq!(upstream.http2, None);
        assert_eq!(tls(&TlsFile::default()).expect("valid"), None);
    }

    #[test]
    fn limits_are_read_and_those_that_nobody_can_keep_are_refused() {
        let limits = limits_of("headers = 64\nhead_bytes = 16384\nhead_timeout = \"2s\"");
        let limits = limits.expect("valid");
        assert_eq!((limits.headers_max, limits.head_bytes_max), (64, 16_384));
        assert_eq!(limits.head_time_max, Duration::from_secs(2));
        for toml in ["head_bytes = 100", "headers = 1", "connections = 0", "body_timeout = \"0s\""]
        {
            let error = limits_of(toml).expect_err(toml).to_string();
            assert!(error.starts_with("limits."), "{error}");
        }
    }

    #[test]
    fn settings_that_mean_nothing_together_are_refused() {
        let certificate = "client_cert_file = \"a\"\nclient_key_file = \"b\"";
        assert!(upstream_of(certificate, "https://bank").expect("valid").client.is_some());
        assert!(upstream_of(certificate, "http://bank").is_err());
        assert!(upstream_of("client_cert_file = \"a\"", "https://bank").is_err());
        assert!(upstream_of("ca_file = \"a\"", "http://bank").is_err());
    }
}
