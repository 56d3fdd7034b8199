//! `[[sink]]`: where the messages of the outbox are delivered.

use std::{collections::BTreeSet, fmt, time::Duration};

use anyhow::{Context as _, Result, ensure};
use http::{HeaderName, HeaderValue};
use onceward::outbox::HttpSink;
use schemars::JsonSchema;
use serde::Deserialize;

use super::{duration, secret::Text};

/// How long a delivery may take, if nothing is said.
const TIMEOUT: Duration = Duration::from_secs(10);

/// A relay waits a little longer, and a process that drains longer still.
const TIMEOUT_MAX: Duration = Duration::from_secs(15);

/// A receiver of messages, as it is written.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct SinkFile {
    /// The name that messages are staged for.
    pub(crate) name: Text,
    /// Where they are posted to, with the message's own key in `Idempotency-Key`.
    pub(crate) url: Text,
    /// Whether the receiver acts once for each key. If not, a delivery that may have acted is a dead
    /// letter and is not tried again.
    pub(crate) idempotent: bool,
    /// Headers that are sent, such as `authorization`.
    #[serde(default)]
    pub(crate) headers: std::collections::BTreeMap<String, Text>,
    /// How long a delivery may take. 10s by default, at most 15s.
    pub(crate) timeout: Option<Text>,
    /// Where the answer has the receiver's own id for it: a JSON pointer, or `header:NAME`.
    pub(crate) provider_id: Option<Text>,
}

/// A receiver of messages.
#[derive(Clone)]
pub(crate) struct SinkSettings {
    pub(crate) name: String,
    pub(crate) url: String,
    pub(crate) idempotent: bool,
    pub(crate) headers: Vec<(HeaderName, HeaderValue)>,
    pub(crate) timeout: Duration,
    pub(crate) provider_id: Option<ProviderId>,
}

/// Where an answer has the receiver's id.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ProviderId {
    Header(HeaderName),
    Json(String),
}

impl fmt::Display for ProviderId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ProviderId::Header(name) => write!(f, "header:{name}"),
            ProviderId::Json(pointer) => f.write_str(pointer),
        }
    }
}

impl fmt::Debug for SinkSettings {
    /// Without the headers, which may be secrets.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SinkSettings").field("name", &self.name).finish_non_exhaustive()
    }
}

impl SinkSettings {
    /// The sink itself.
    pub(crate) fn open(&self) -> Result<HttpSink> {
        let sink = match self.idempotent {
            true => HttpSink::idempotent(&self.url),
            false => HttpSink::not_idempotent(&self.url),
        };
        let mut sink = sink.with_context(|| format!("sink \"{}\"", self.name))?;
        for (name, value) in &self.headers {
            sink = sink.header(name.clone(), value.clone());
        }
        sink = sink.timeout(self.timeout);
        Ok(match &self.provider_id {
            None => sink,
            Some(ProviderId::Header(name)) => sink.provider_id_from_header(name.clone()),
            Some(ProviderId::Json(pointer)) => sink.provider_id_from_json(pointer.as_str()),
        })
    }
}

pub(super) fn resolve(files: &[SinkFile]) -> Result<Vec<SinkSettings>> {
    let mut names = BTreeSet::new();
    let mut sinks = Vec::new();
    for file in files {
        let name = file.name.as_str();
        let sink = one(file).with_context(|| format!("sink \"{name}\""))?;
        ensure!(names.insert(name.to_owned()), "sink \"{name}\" is there twice");
        sink.open()?;
        sinks.push(sink);
    }
    Ok(sinks)
}

fn one(file: &SinkFile) -> Result<SinkSettings> {
    let name = file.name.as_str();
    ensure!((1..=255).contains(&name.len()), "name: 1 to 255 bytes");
    let url = file.url.as_str();
    ensure!(!url.contains('@'), "url: credentials belong in `headers`");
    let mut headers = Vec::new();
    for (name, value) in &file.headers {
        let name: HeaderName =
            name.parse().with_context(|| format!("headers: `{name}` is not a name"))?;
        // The value may be a secret and is not repeated.
        let mut value = HeaderValue::from_str(value.as_str())
            .map_err(|_| anyhow::anyhow!("headers: the value of {name} cannot be sent"))?;
        value.set_sensitive(true);
        headers.push((name, value));
    }
    let timeout = match &file.timeout {
        None => TIMEOUT,
        Some(text) => duration::parse(text.as_str()).context("timeout")?,
    };
    ensure!(
        (Duration::from_millis(100)..=TIMEOUT_MAX).contains(&timeout),
        "timeout must be from 100ms to 15s"
    );
    Ok(SinkSettings {
        name: name.to_owned(),
        url: url.to_owned(),
        idempotent: file.idempotent,
        headers,
        timeout,
        provider_id: file.provider_id.as_ref().map(provider_id).transpose()?,
    })
}

fn provider_id(text: &Text) -> Result<ProviderId> {
    let text = text.as_str();
    if let Some(name) = text.strip_prefix("header:") {
        let name = name.parse().with_context(|| format!("provider_id: `{name}` is not a name"))?;
        return Ok(ProviderId::Header(name));
    }
    ensure!(
        text.starts_with('/'),
        "provider_id: `{text}` is neither a JSON pointer such as /id nor header:NAME"
    );
    Ok(ProviderId::Json(text.to_owned()))
}
