//! Unknown outcomes, asked about as the routes declare.

use std::{collections::HashMap, net::SocketAddr, sync::Arc, time::Duration};

use anyhow::{Context as _, Result};
use bytes::{Bytes, BytesMut};
use http::{HeaderValue, StatusCode, header::CONTENT_TYPE};
use onceward::{
    Finding, Probe, Reconciler, Reply, Store, Unknown, reply::ReplyBody, worker::ProbeFuture,
};
use reqwest::{
    Client, Response,
    dns::{Addrs, Name, Resolve, Resolving},
    redirect,
};
use tokio::{sync::oneshot, task::JoinHandle, time::timeout};
use tracing::debug;

use super::part;
use crate::config::{Condition, ProbeSettings, ReplyStatus, RouteTable, is_private};

#[cfg(test)]
mod tests;

/// How often the store is asked for what is due.
const EVERY: Duration = Duration::from_secs(1);

/// No answer is read further than this.
const ANSWER_MAX: usize = 1 << 20;

/// Asks about unknown outcomes under one configuration, until it is stopped or replaced. If this is only
/// dropped, nothing is begun any more, and what is being asked about comes to its end by itself.
pub(crate) struct Reconciling {
    task: JoinHandle<()>,
    /// Tells it to stop by going away.
    going: oneshot::Sender<()>,
}

impl Reconciling {
    pub(crate) fn start(store: &Arc<dyn Store>, probes: Probes) -> Self {
        // Each probe has a time of its own, which is shorter.
        let reconciler = Reconciler::new(Arc::clone(store), probes)
            .patience(Duration::from_secs(90))
            .every(EVERY);
        let (going, gone) = oneshot::channel();
        // Nothing is ever sent.
        let stop = async { drop(gone.await) };
        let task = tokio::spawn(async move { reconciler.run(stop).await });
        Reconciling { task, going }
    }

    /// Waits until what is being asked about has an answer. What has none by then is asked about again
    /// after its pause.
    pub(crate) async fn stop(mut self, at_most: Duration) {
        drop(self.going);
        if timeout(at_most, &mut self.task).await.is_err() {
            self.task.abort();
        }
    }
}

/// The probes of all routes, by the name under which records know them.
#[derive(Debug)]
pub(crate) struct Probes(HashMap<Box<str>, HttpProbe>);

impl Probes {
    pub(crate) fn new(routes: &RouteTable) -> Result<Self> {
        let mut probes = HashMap::new();
        for route in routes.all() {
            if let Some(settings) = &route.probe {
                let probe = HttpProbe::new(Arc::clone(settings), Arc::new(System))?;
                probes.insert(route.policy.rules().name.into(), probe);
            }
        }
        Ok(Probes(probes))
    }
}

impl Probe for Probes {
    fn ask<'a>(&'a self, unknown: &'a Unknown) -> ProbeFuture<'a> {
        Box::pin(async move {
            match self.0.get(&*unknown.route) {
                Some(probe) => probe.ask(unknown).await,
                None => Finding::StillUnknown,
            }
        })
    }

    fn knows(&self, route: &str) -> bool {
        self.0.contains_key(route)
    }
}

/// One declared probe.
#[derive(Debug)]
struct HttpProbe {
    settings: Arc<ProbeSettings>,
    client: Client,
}

/// Names as this machine knows them.
struct System;

impl Resolve for System {
    fn resolve(&self, name: Name) -> Resolving {
        Box::pin(async move {
            let found = tokio::net::lookup_host((name.as_str(), 0)).await?;
            Ok(Box::new(found.collect::<Vec<_>>().into_iter()) as Addrs)
        })
    }
}

/// Names are looked up once for each connection, and what is connected to is what was checked: a name
/// that leads elsewhere a moment later changes nothing.
struct Checked {
    names: Arc<dyn Resolve>,
    allow_private: bool,
}

impl Resolve for Checked {
    fn resolve(&self, name: Name) -> Resolving {
        let (found, allow_private) = (self.names.resolve(name), self.allow_private);
        Box::pin(async move {
            let allowed: Vec<SocketAddr> =
                found.await?.filter(|address| allow_private || !is_private(address.ip())).collect();
            if allowed.is_empty() {
                return Err("the host has private addresses only".into());
            }
            let addresses: Addrs = Box::new(allowed.into_iter());
            Ok(addresses)
        })
    }
}

impl HttpProbe {
    fn new(settings: Arc<ProbeSettings>, names: Arc<dyn Resolve>) -> Result<Self> {
        let names = Checked { names, allow_private: settings.allow_private };
        let client = Client::builder()
            .redirect(redirect::Policy::none())
            .retry(reqwest::retry::never())
            .no_proxy()
            .dns_resolver(Arc::new(names))
            .timeout(settings.timeout)
            .user_agent(concat!("onceward/", env!("CARGO_PKG_VERSION")))
            .build()
            .context("the HTTP client of a probe cannot be made")?;
        Ok(HttpProbe { settings, client })
    }

    async fn ask(&self, unknown: &Unknown) -> Finding {
        if !self.settings.url.tells_apart(unknown.generation) {
            debug!(route = &*unknown.route, "a probe cannot tell an earlier use of the key apart");
            return Finding::StillUnknown;
        }
        let value = |place: &str| match place {
            "key" => Some(unknown.id.key.as_str().to_owned()),
            "scope" => Some(unknown.id.scope.as_str().to_owned()),
            "operation" => Some(unknown.operation.clone()),
            "attempt" => Some(unknown.attempt.to_string()),
            "generation" => Some(unknown.generation.to_string()),
            _ => None,
        };
        let Some(url) = self.settings.url.fill(value) else { return Finding::StillUnknown };
        let mut request = self.client.request(self.settings.method.clone(), url);
        for (name, value) in &self.settings.headers {
            request = request.header(name, value);
        }
        match self.answer(request).await {
            Ok(Some((status, content_type, body))) => {
                judge(&self.settings, status, content_type, &body)
            }
            Ok(None) => Finding::StillUnknown,
            Err(error) => {
                // Without the address, which has the key in it.
                let error = error.without_url();
                debug!(route = &*unknown.route, %error, "a probe was not answered");
                Finding::StillUnknown
            }
        }
    }

    async fn answer(&self, request: reqwest::RequestBuilder) -> reqwest::Result<Option<Answer>> {
        let mut response: Response = request.send().await?;
        let content_type = response.headers().get(CONTENT_TYPE).cloned();
        let mut body = BytesMut::new();
        while let Some(chunk) = response.chunk().await? {
            if body.len() + chunk.len() > ANSWER_MAX {
                return Ok(None);
            }
            body.extend_from_slice(&chunk);
        }
        Ok(Some((response.status(), content_type, body.freeze())))
    }
}

type Answer = (StatusCode, Option<HeaderValue>, Bytes);

/// What an answer means. One that means two things means nothing.
fn judge(
    settings: &ProbeSettings,
    status: StatusCode,
    content_type: Option<HeaderValue>,
    body: &Bytes,
) -> Finding {
    let holds = |condition: &Condition| {
        let is = condition.is.as_ref().is_none_or(|(pointer, expected)| {
            part::word(body, pointer).is_some_and(|found| found == *expected)
        });
        condition.status.contains(&status) && is
    };
    let not_executed = settings.not_executed.as_ref().filter(|(condition, _)| holds(condition));
    match (holds(&settings.completed), not_executed) {
        (true, None) => {
            reply(settings, content_type, body).map_or(Finding::StillUnknown, Finding::Completed)
        }
        (false, Some((_, authoritative))) => Finding::NotExecuted { authoritative: *authoritative },
        _ => Finding::StillUnknown,
    }
}

/// What the client is told. `None` when the answer does not say it.
fn reply(
    settings: &ProbeSettings,
    content_type: Option<HeaderValue>,
    body: &Bytes,
) -> Option<Reply> {
    let status = match &settings.reply_status {
        ReplyStatus::Is(status) => *status,
        ReplyStatus::At(pointer) => part::status(body, pointer.as_str())?,
    };
    let status = Some(status).filter(|status| (200..600).contains(status))?;
    let (body, content_type) = match &settings.reply_body {
        None => (body.clone(), content_type),
        Some(pointer) => {
            let json = HeaderValue::from_static("application/json");
            (part::bytes(body, pointer)?, Some(json))
        }
    };
    Some(Reply {
        status: StatusCode::from_u16(status).ok()?,
        headers: content_type.map(|value| (CONTENT_TYPE, value)).into_iter().collect(),
        body: ReplyBody::Stored(body),
        schema_version: None,
    })
}
