//! The gateway: requests through the engine to upstream and back. No decisions about keys.
//!
//! ```text
//! pass on    headers changed, bodies streamed both ways
//! observe    the same, while the shadow looks on
//! protect    admitted, body buffered; from then on nobody cancels it: reserve, forward, store, answer
//! ```

use std::{
    sync::{Arc, PoisonError, RwLock},
    time::{Duration, SystemTime},
};

use bytes::Bytes;
use http::{
    HeaderValue, Method, Request, Response, StatusCode, header::RETRY_AFTER, request::Parts,
};
use hyper::body::Incoming;
use onceward::{
    Engine, Policy, Rejection,
    engine::{Admitted, STATUS_PATH},
    observe,
    reply::ONCEWARD_OUTCOME,
    tower::{Body, Consent, early, run_detached, take_body},
};
use tracing::debug;

use crate::{
    config::{Limits, Route, RouteTable, Treatment},
    listener::{Alarms, Answer, Peer},
    traffic::{Endpoint, Traffic},
};

mod age; // requests that are too old
mod ambiguous; // requests that say two things
mod budget; // bytes in memory
mod cors; // what pages in browsers may send and read
mod dispatch; // requests that no client waits for
mod forward; // the engine's handler: one request to upstream
mod headers; // what is stripped and what is added
mod paced; // bodies that have to keep moving
mod part; // parts of JSON that others wrote
mod probe; // unknown outcomes, asked about
mod pass; // requests that are not ours
mod shadow; // what protection would have done
mod webhook; // what providers tell
mod upstream; // the client, and what its errors prove

pub(crate) use age::MaxAge;
use budget::{Budget, Room};
pub(crate) use cors::Cors;
use cors::CrossOrigin;
pub(crate) use dispatch::Dispatcher;
use forward::Forward;
use headers::Trailers;
pub(crate) use headers::{Deciding, Rewrite};
use paced::Paced;
pub(crate) use pass::Pace;
pub(crate) use probe::{Probes, Reconciling};
pub(crate) use shadow::{Observation, Shadow};
use shadow::{Verdict, Watched};
pub(crate) use upstream::{Failure, Upstream};
use upstream::{FromUpstream, Outgoing};
pub(crate) use webhook::Webhooks;

/// One gateway in front of one upstream.
#[derive(Clone)]
pub(crate) struct Gateway {
    setup: Arc<RwLock<Arc<Setup>>>,
    shadow: Arc<Shadow>,
    budget: Arc<Budget>,
    body_time_max: Duration,
}

/// All that can be changed while the gateway runs. A request keeps the one it began with.
pub(crate) struct Setup {
    pub(crate) engine: Arc<Engine>,
    pub(crate) upstream: Arc<Upstream>,
    pub(crate) rewrite: Rewrite,
    /// Whether the scope depends on who sent a request.
    pub(crate) scope_asks_for_peer: bool,
    pub(crate) pace: Pace,
    pub(crate) routes: RouteTable,
    pub(crate) traffic: Traffic,
    pub(crate) cors: Cors,
    pub(crate) webhooks: Webhooks,
}

type GatewayBody = Body<Paced<FromUpstream>>;

impl Gateway {
    pub(crate) fn new(setup: Setup, limits: &Limits) -> Self {
        Shadow::register(&setup.routes);
        Gateway {
            setup: Arc::new(RwLock::new(Arc::new(setup))),
            shadow: Arc::default(),
            budget: Arc::new(Budget::new(limits.buffered_bytes_max)),
            body_time_max: limits.body_time_max,
        }
    }

    /// What is seen on shadow routes.
    pub(crate) fn shadow(&self) -> &Arc<Shadow> {
        &self.shadow
    }

    /// From the next request on, this setup holds.
    pub(crate) fn set_up(&self, setup: Setup) {
        Shadow::register(&setup.routes);
        *self.setup.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(setup);
    }

    fn setup(&self) -> Arc<Setup> {
        Arc::clone(&self.setup.read().unwrap_or_else(PoisonError::into_inner))
    }

    async fn observe(
        &self,
        setup: &Setup,
        route: &Arc<Route>,
        peer: &Peer,
        parts: Parts,
        body: Incoming,
    ) -> Response<GatewayBody> {
        let admitted = setup.engine.admit(&parts, &route.policy);
        let young = |admitted: Option<Admitted>| match admitted {
            Some(admitted) => check_age(&parts, route, &admitted).map(|()| Some(admitted)),
            None => Ok(None),
        };
        match admitted.and_then(young) {
            Ok(Some(admitted)) => {
                // The shadow copies the body. Without room it does not look.
                let Some(room) = self.budget.take(&body, route.policy.request_cap()) else {
                    debug!("no room to look at a request on a shadow route");
                    return setup.pass_on(route, peer, parts, body).await;
                };
                let seen = Arc::new(parts.clone());
                let watched = Watched::new(&self.shadow, route, &seen, admitted.id().clone());
                let body = Body::watched(setup.pace.request(body), watched.body(room));
                let passed = setup.send(route, peer, parts, body).await;
                watched.answered(passed.as_ref().ok().map(Response::status));
                passed.unwrap_or_else(pass::not_passed)
            }
            Ok(None) => setup.pass_on(route, peer, parts, body).await,
            Err(rejection) => {
                let verdict = Verdict::Refuse(rejection.code());
                self.shadow.tell(route, &parts, None, verdict);
                setup.pass_on(route, peer, parts, body).await
            }
        }
    }

    async fn protect(
        &self,
        setup: &Arc<Setup>,
        route: &Route,
        peer: &Peer,
        parts: Parts,
        body: Incoming,
    ) -> Response<GatewayBody> {
        let (engine, policy) = (&setup.engine, &route.policy);
        // Other ways are in boxes: what waits for all of them is as large as the largest.
        let admitted = match setup.admit(&parts, route) {
            Ok(Some(admitted)) => admitted,
            Ok(None) => return Box::pin(setup.pass_on(route, peer, parts, body)).await,
            Err(rejection) => return Box::pin(setup.refuse(route, &parts, body, rejection)).await,
        };
        let Some(room) = self.budget.take(&body, policy.request_cap()) else {
            let status = StatusCode::SERVICE_UNAVAILABLE;
            observe::refused(policy.rules().name, status, "unavailable");
            return Box::pin(early(parts.version, body, Consent::of(&parts), busy())).await;
        };
        let taken = take_body(engine, policy, &parts, body, Some(self.body_time_max)).await;
        let body = match taken {
            Ok(body) => body,
            Err(answered) => return answered,
        };
        let asked = engine.ask(admitted, &parts, &body);
        // From here on only the rewritten head says where the request came from.
        let head = setup.rewrite.request(parts, peer, Trailers::Drop);
        // What upstream is to know about the client is known now.
        let asked = asked.keeping(&head, &body);
        let room = Some((room, &self.budget));
        let forward = setup.forward(policy, head, body, room, peer.alarms.clone());
        let response = run_detached(engine, policy, asked, forward).await;
        self.make_room(response)
    }

    /// Answers take room until they are sent: what was executed has its own. A replay for which there is
    /// none can be had again.
    fn make_room(&self, response: Response<GatewayBody>) -> Response<GatewayBody> {
        if response.headers().get(&ONCEWARD_OUTCOME).is_none_or(|outcome| outcome != "replayed") {
            return response;
        }
        match self.budget.take(response.body(), usize::MAX) {
            Some(room) => response.map(|body| body.holding(room)),
            None => busy(),
        }
    }
}

impl Setup {
    /// A request that is too old is not run any more. The reply that its key may have is still its.
    fn admit(&self, parts: &Parts, route: &Route) -> Result<Option<Admitted>, Rejection> {
        let Some(admitted) = self.engine.admit(parts, &route.policy)? else { return Ok(None) };
        Ok(Some(match check_age(parts, route, &admitted) {
            Ok(()) => admitted,
            Err(too_old) => admitted.only_if_known(too_old),
        }))
    }

    /// Answers a request that is not to be passed on, nor protected.
    async fn refuse(
        &self,
        route: &Route,
        parts: &Parts,
        body: Incoming,
        rejection: Rejection,
    ) -> Response<GatewayBody> {
        let response = self.engine.reject(rejection, &route.policy).map(Body::full);
        early(parts.version, body, Consent::of(parts), response).await
    }

    /// The engine's handler for a request, with its head as upstream is to see it.
    fn forward(
        self: &Arc<Self>,
        policy: &Policy,
        parts: Parts,
        body: Bytes,
        room: Option<(Room, &Arc<Budget>)>,
        alarms: Alarms,
    ) -> Forward {
        Forward {
            setup: Arc::clone(self),
            parts: Box::new(parts),
            body,
            reply_cap: policy.reply_cap(),
            // Past `max_execution` the outcome is unknown, but an answer that comes late is still
            // the truth and is stored.
            patience: policy.rules().max_execution.saturating_mul(2),
            alarms,
            budget: room.as_ref().map(|(_, budget)| Arc::clone(budget)),
            room: room.map(|(room, _)| room),
        }
    }

    /// A request that is not ours: streamed both ways.
    async fn pass_on(
        &self,
        route: &Route,
        peer: &Peer,
        parts: Parts,
        body: Incoming,
    ) -> Response<GatewayBody> {
        let body = Body::streaming(self.pace.request(body));
        self.send(route, peer, parts, body).await.unwrap_or_else(pass::not_passed)
    }

    async fn send(
        &self,
        route: &Route,
        peer: &Peer,
        parts: Parts,
        body: Outgoing,
    ) -> Result<Response<GatewayBody>, Failure> {
        let endpoint = Endpoint::of(&parts.method, parts.uri.path());
        let sent = pass::send(self, peer, parts, body, route.upgrade).await;
        if let Some(endpoint) = endpoint {
            self.traffic.note(endpoint, sent.as_ref().ok().map(Response::status));
        }
        sent
    }
}

impl Answer for Gateway {
    type Body = GatewayBody;

    async fn answer(&self, peer: &Arc<Peer>, request: Request<Incoming>) -> Response<GatewayBody> {
        let (mut parts, body) = request.into_parts();
        if parts.method == Method::CONNECT {
            return bare(StatusCode::METHOD_NOT_ALLOWED);
        }
        let setup = self.setup();
        if setup.scope_asks_for_peer {
            parts.extensions.insert(Arc::clone(peer));
        }
        if setup.webhooks.takes(&parts) {
            let (budget, time_max) = (&self.budget, self.body_time_max);
            return Box::pin(setup.webhooks.answer(&parts, body, budget, time_max)).await;
        }
        let route = setup.routes.find(&parts.method, parts.uri.path());
        let asks_for_state =
            parts.method == Method::GET && parts.uri.path().starts_with(STATUS_PATH);
        // A preflight is about the route of the request that it announces.
        let page = CrossOrigin::of(&parts).filter(|page| {
            let route = setup.routes.find(&page.method, parts.uri.path());
            asks_for_state || route.treatment(&page.method) == Treatment::Protect
        });
        let clear = ambiguous::check(&parts, setup.rewrite.deciding(), &setup.routes);
        let mut response = match (clear, route.treatment(&parts.method)) {
            (Err(rejection), _) => Box::pin(setup.refuse(route, &parts, body, rejection)).await,
            _ if asks_for_state => {
                let from = setup.rewrite.client(&parts.headers, peer);
                Box::pin(setup.engine.status_for(&parts, from)).await.map(Body::full)
            }
            (_, Treatment::PassOn) => Box::pin(setup.pass_on(route, peer, parts, body)).await,
            (_, Treatment::Observe) => {
                Box::pin(self.observe(&setup, route, peer, parts, body)).await
            }
            (_, Treatment::Protect) => self.protect(&setup, route, peer, parts, body).await,
        };
        if let Some(page) = page {
            page.answer(&setup.cors, response.headers_mut());
        }
        response
    }
}

fn check_age(parts: &Parts, route: &Route, admitted: &Admitted) -> Result<(), Rejection> {
    match &route.max_age {
        Some(max_age) => max_age.check(&parts.headers, admitted.client_key(), SystemTime::now()),
        None => Ok(()),
    }
}

/// An answer without words, for requests that are not ours to explain.
fn bare(status: StatusCode) -> Response<GatewayBody> {
    let mut response = Response::new(Body::full(Bytes::new()));
    *response.status_mut() = status;
    response
}

/// Too many bytes are in memory. Nothing was reserved.
fn busy() -> Response<GatewayBody> {
    let mut response = bare(StatusCode::SERVICE_UNAVAILABLE);
    response.headers_mut().insert(RETRY_AFTER, HeaderValue::from_static("1"));
    response
}
