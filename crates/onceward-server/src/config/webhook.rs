//! `[[webhook]]`: providers that tell by themselves what became of an operation.

use std::{collections::BTreeSet, fmt, time::Duration};

use anyhow::{Context as _, Result, ensure};
use onceward::ProviderId;
use schemars::JsonSchema;
use serde::Deserialize;

use super::{duration, probe::ReplyStatus, route::RouteTable, secret::Text};

/// A provider that tells, as it is written.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct WebhookFile {
    /// The last part of its address, `/.onceward/webhooks/NAME`: letters, digits, `-` and `_`.
    pub(crate) name: Text,
    /// The secret that its messages are signed with, at least 16 bytes.
    pub(crate) secret: Text,
    /// How old, or how far ahead, a message may be. 5m by default, at most 1h.
    pub(crate) tolerance: Option<Text>,
    /// Where the message has the operation, as upstream was told it in `Onceward-Operation`: a JSON
    /// pointer. Or give `scope` and `key`, or `provider_id`.
    pub(crate) operation: Option<Text>,
    /// Where the message has the scope: a JSON pointer.
    pub(crate) scope: Option<Text>,
    /// Where the message has the key of the client: a JSON pointer.
    pub(crate) key: Option<Text>,
    /// Where the message has the provider's own id, as upstream told it in `Onceward-Provider-Id`: a JSON
    /// pointer to a string or a number. An id that was not told to us is answered with 404.
    pub(crate) provider_id: Option<Text>,
    /// Whose ids these are, as upstream named the provider before the id. `default` where it named none;
    /// needed when two webhooks have `provider_id`.
    pub(crate) provider: Option<Text>,
    /// Where the message has the attempt, as upstream was told it in `Onceward-Attempt-Id`: a JSON
    /// pointer. Needed with `not_executed`, and for keys that are used again after they expired.
    pub(crate) attempt: Option<Text>,
    /// The routes whose operations it may tell about, as their `match` is written; `default` for all
    /// that no route matches.
    pub(crate) routes: Vec<Text>,
    /// Where the message says what happened: a JSON pointer.
    pub(crate) outcome: Text,
    /// The words there that mean that it was executed.
    pub(crate) completed: Vec<Text>,
    /// The words there that mean that it was not, and will not be. Other words mean nothing.
    #[serde(default)]
    pub(crate) not_executed: Vec<Text>,
    /// The status of the reply: a number, or a pointer to one in the message. 200 by default.
    pub(crate) reply_status: Option<ReplyStatus>,
    /// The part of the message that is the body of the reply, as a pointer. All of it by default.
    pub(crate) reply_body: Option<Text>,
}

/// A provider that tells what became of operations.
#[derive(Clone)]
pub(crate) struct WebhookSettings {
    pub(crate) name: String,
    pub(crate) secret: Vec<u8>,
    pub(crate) tolerance: Duration,
    pub(crate) about: About,
    pub(crate) attempt: Option<String>,
    pub(crate) routes: Vec<String>,
    pub(crate) outcome: String,
    pub(crate) completed: Vec<String>,
    pub(crate) not_executed: Vec<String>,
    pub(crate) reply_status: ReplyStatus,
    pub(crate) reply_body: Option<String>,
}

/// Where a message names its record.
#[derive(Clone, Debug)]
pub(crate) enum About {
    Operation(String),
    Key { scope: String, key: String },
    ProviderId { provider: String, id: String },
}

impl fmt::Debug for WebhookSettings {
    /// Without the secret.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WebhookSettings").field("name", &self.name).finish_non_exhaustive()
    }
}

pub(super) fn resolve(files: &[WebhookFile], routes: &RouteTable) -> Result<Vec<WebhookSettings>> {
    let mut names = BTreeSet::new();
    let mut webhooks = Vec::new();
    let by_provider_id = files.iter().filter(|file| file.provider_id.is_some());
    ensure!(
        by_provider_id.clone().count() < 2
            || by_provider_id.clone().all(|it| it.provider.is_some()),
        "two webhooks have `provider_id`: say in each whose ids they are, by `provider`"
    );
    for file in files {
        let name = file.name.as_str();
        let webhook = one(file, routes).with_context(|| format!("webhook \"{name}\""))?;
        ensure!(names.insert(name.to_owned()), "webhook \"{name}\" is there twice");
        webhooks.push(webhook);
    }
    Ok(webhooks)
}

fn one(file: &WebhookFile, table: &RouteTable) -> Result<WebhookSettings> {
    let name = file.name.as_str();
    let good = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
    ensure!(
        !name.is_empty() && name.len() <= 64 && name.bytes().all(good),
        "name: letters, digits, `-` and `_`"
    );
    ensure!(file.secret.as_str().len() >= 16, "secret: at least 16 bytes");
    let tolerance = match &file.tolerance {
        None => Duration::from_secs(300),
        Some(text) => duration::parse(text.as_str()).context("tolerance")?,
    };
    ensure!(
        (Duration::from_secs(1)..=Duration::from_secs(3_600)).contains(&tolerance),
        "tolerance must be from 1s to 1h"
    );
    let about = about(file)?;
    ensure!(!file.completed.is_empty(), "completed: at least one word");
    let words = |texts: &[Text]| texts.iter().map(|text| text.as_str().to_owned()).collect();
    let (completed, not_executed): (Vec<String>, Vec<String>) =
        (words(&file.completed), words(&file.not_executed));
    ensure!(
        !completed.iter().any(|word| not_executed.contains(word)),
        "a word is in `completed` and in `not_executed`"
    );
    ensure!(
        not_executed.is_empty() || file.attempt.is_some(),
        "not_executed needs `attempt`: of a message that names none nobody knows which attempt it is \
         about, and a later one would be run again"
    );
    ensure!(!file.routes.is_empty(), "routes: name at least one");
    let routes: Vec<String> = words(&file.routes);
    for route in &routes {
        let known = table.all().any(|known| known.name() == route);
        ensure!(known, "routes: `{route}` is the `match` of no route");
    }
    match &file.reply_status {
        Some(ReplyStatus::Is(status)) => ensure!(
            (200..600).contains(status),
            "reply_status: {status} cannot be the status of a reply"
        ),
        Some(ReplyStatus::At(at)) => drop(pointer("reply_status", at)?),
        None => {}
    }
    let reply_body = file.reply_body.as_ref().map(|at| pointer("reply_body", at)).transpose()?;
    Ok(WebhookSettings {
        name: name.to_owned(),
        secret: file.secret.as_str().as_bytes().to_vec(),
        tolerance,
        about,
        attempt: file.attempt.as_ref().map(|at| pointer("attempt", at)).transpose()?,
        routes,
        outcome: pointer("outcome", &file.outcome)?,
        completed,
        not_executed,
        reply_status: file.reply_status.clone().unwrap_or(ReplyStatus::Is(200)),
        reply_body,
    })
}

/// Where a message names its record: in one way only.
fn about(file: &WebhookFile) -> Result<About> {
    ensure!(
        file.provider.is_none() || file.provider_id.is_some(),
        "provider: only with `provider_id`"
    );
    match (&file.operation, &file.scope, &file.key, &file.provider_id) {
        (Some(at), None, None, None) => Ok(About::Operation(pointer("operation", at)?)),
        (None, Some(scope), Some(key), None) => {
            Ok(About::Key { scope: pointer("scope", scope)?, key: pointer("key", key)? })
        }
        (None, None, None, Some(at)) => {
            let provider = file.provider.as_ref().map(Text::as_str);
            let provider = provider.unwrap_or(ProviderId::DEFAULT_PROVIDER).to_owned();
            ProviderId::new(&*provider, "any").context("provider")?;
            Ok(About::ProviderId { provider, id: pointer("provider_id", at)? })
        }
        _ => anyhow::bail!("give `operation`, or `scope` and `key`, or `provider_id`"),
    }
}

fn pointer(key: &str, text: &Text) -> Result<String> {
    let text = text.as_str();
    ensure!(text.starts_with('/'), "{key}: `{text}` is not a JSON pointer such as /id");
    Ok(text.to_owned())
}
