//! The engine's handler: one request to upstream, and what its end means.

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use http::{HeaderValue, StatusCode, request::Parts};
use onceward::{
    Operation,
    engine::{Captured, Execution, Handler},
    reply::{ONCEWARD_ATTEMPT, ONCEWARD_ATTEMPT_ID, ONCEWARD_FENCE, ONCEWARD_OPERATION},
    tower::{Body, Collected, collect, holding, note_beside},
};
use tokio::time::Instant;

use super::{
    Failure, GatewayBody, Setup, Trailers,
    budget::{Budget, Room, shrink},
    paced::Paced,
};
use crate::listener::Alarms;

pub(super) struct Forward {
    pub(super) setup: Arc<Setup>,
    /// The head of the request as upstream is to see it. In a box: all that waits for this holds it.
    pub(super) parts: Box<Parts>,
    pub(super) body: Bytes,
    pub(super) reply_cap: usize,
    pub(super) patience: Duration,
    pub(super) alarms: Alarms,
    /// For the body, as long as it is needed; none for one that was stored.
    pub(super) room: Option<Room>,
    /// Where room for the reply comes from. None where no client waits, who would get a reply that
    /// there is no room for as it comes: it is kept whatever it takes.
    pub(super) budget: Option<Arc<Budget>>,
}

/// No reply waits longer than this for room.
const ROOM_TIME_MAX: Duration = Duration::from_secs(5);

impl Handler for Forward {
    type Rest = GatewayBody;

    async fn run(self, operation: Operation) -> Execution<GatewayBody> {
        let (deadline, alarms) = (Instant::now() + self.patience, self.alarms.clone());
        let too_slow = Execution::NoFullAnswer {
            status: StatusCode::GATEWAY_TIMEOUT,
            why: "upstream_too_slow",
        };
        // In a box, so that what it takes is not moved around with all that waits for it.
        let forwarded = Box::pin(self.forward(operation));
        alarms.until(deadline, forwarded).await.unwrap_or(too_slow)
    }
}

impl Forward {
    async fn forward(mut self, operation: Operation) -> Execution<GatewayBody> {
        let attempt = operation.attempt_number();
        if attempt > 1 {
            self.parts.headers.insert(&ONCEWARD_ATTEMPT, HeaderValue::from(attempt));
        }
        let fence = HeaderValue::from(operation.fence().number());
        self.parts.headers.insert(&ONCEWARD_FENCE, fence);
        let handle = HeaderValue::try_from(operation.handle());
        let attempt_id = HeaderValue::from_bytes(&operation.attempt().to_text());
        for (name, value) in
            [(&ONCEWARD_OPERATION, handle.ok()), (&ONCEWARD_ATTEMPT_ID, attempt_id.ok())]
        {
            if let Some(value) = value {
                self.parts.headers.insert(name, value);
            }
        }
        operation.not_yet_sent();
        let sent = self.setup.upstream.send(*self.parts, Body::full(self.body), &operation).await;
        drop(self.room);
        let response = match sent {
            Ok(response) => response,
            Err(Failure::NeverSent { why }) => return Execution::NeverSent { why },
            Err(Failure::NoFullAnswer { status, why }) => {
                return Execution::NoFullAnswer { status, why };
            }
            // The body is in memory, so that this cannot be; and if it were, a part was sent.
            Err(Failure::ClientBrokeOff { .. }) => return no_full_answer("request_was_cut_off"),
        };
        let (mut parts, body) = self.setup.rewrite.response(response, Trailers::Drop).into_parts();
        // It was executed, so that it has to be answered. Without room its body is not kept, but
        // passed on as it comes: as if it were too large.
        let wait = ROOM_TIME_MAX.min(self.patience / 8);
        let mut room = match &self.budget {
            Some(budget) => budget.wait(&body, self.reply_cap, wait).await,
            None => None,
        };
        let is_kept = room.is_some() || self.budget.is_none();
        let cap = if is_kept { self.reply_cap } else { 0 };
        let body = collect(Paced::free(body), cap);
        let collected = note_beside(&operation, &mut parts.headers, body).await;
        if let (Some(room), Collected::Whole(body, _)) = (&mut room, &collected) {
            shrink(room, body.len());
        }
        // It is taken for as long as somebody has the bytes, be it to store or to send them.
        let held = |bytes: Bytes| match room {
            Some(room) if !bytes.is_empty() => holding(bytes, room),
            _ => bytes,
        };
        match collected {
            // We did not offer to take trailers (`TE` is stripped), so that they may be dropped, for
            // the first caller as for every retry.
            Collected::Whole(body, _) => Execution::Answered(parts, Captured::Whole(held(body))),
            Collected::TooLarge(begun, rest) => {
                let rest = rest.no_more_stall(self.setup.pace.stall_max);
                Execution::Answered(parts, Captured::TooLarge(Body::begun(held(begun), rest)))
            }
            Collected::Broken => no_full_answer("answer_was_cut_off"),
        }
    }
}

fn no_full_answer(why: &'static str) -> Execution<GatewayBody> {
    Execution::NoFullAnswer { status: StatusCode::BAD_GATEWAY, why }
}
