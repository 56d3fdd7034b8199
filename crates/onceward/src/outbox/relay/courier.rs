//! One delivery: whether it may be begun, the try, what came of it, and writing that down.

use std::{
    panic::AssertUnwindSafe,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use futures_util::FutureExt as _;
use rand::{Rng as _, rngs::StdRng};
use tokio::time::{Instant, sleep, timeout, timeout_at};
use tracing::{debug, error, info, warn};

use crate::{
    canary::Canary,
    observe,
    outbox::{Backoff, Claimed, Delivered, Delivery, OutboxStore, Settlement, Sink},
    record::AttemptId,
    store::{StoreError, StoreErrorKind, StoreFuture},
};

/// How long a claim is repeated when the store does not answer.
const CLAIM_PATIENCE: Duration = Duration::from_secs(5);
/// How long to wait before a store call is repeated.
const PAUSE: Duration = Duration::from_millis(200);
/// A receiver that asks to be left alone for longer than this is asked again.
const LATER_MAX: Duration = Duration::from_secs(3600);
/// A message that was claimed when the store lost data is not looked at again for this long.
const LOSS_PAUSE: Duration = Duration::from_secs(1);
/// How much of a reason is kept.
const WHY_MAX: usize = 500;

/// What a relay allows.
#[derive(Clone, Copy, Debug)]
pub(super) struct Rules {
    pub(super) attempts_max: u32,
    pub(super) backoff: Backoff,
    pub(super) delivery_timeout: Duration,
}

impl Rules {
    /// Longer than a delivery can take, so that nobody else claims what is being delivered.
    fn lease(&self) -> Duration {
        self.delivery_timeout.saturating_mul(3)
    }
}

/// A claim: under which name it was made, and when it was sent.
#[derive(Clone, Copy, Debug)]
pub(super) struct Claim {
    attempt: AttemptId,
    sent: Instant,
}

impl Default for Claim {
    fn default() -> Self {
        Claim { attempt: AttemptId::random(), sent: Instant::now() }
    }
}

/// What became of a delivery.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ended {
    Delivered,
    Retried,
    Dead,
    Superseded,
    NotWritten,
}

/// Delivers to one sink.
pub(super) struct Courier {
    pub(super) store: Arc<dyn OutboxStore>,
    pub(super) name: Box<str>,
    pub(super) sink: Arc<dyn Sink>,
    pub(super) rules: Rules,
    pub(super) canary: Option<Arc<Canary>>,
    pub(super) random: Arc<Mutex<StdRng>>,
}

impl Courier {
    /// Claims at most this many. A claim whose answer was lost is repeated under the same name, so
    /// that nothing is left claimed that nobody delivers.
    pub(super) async fn claim(&self, room: u32) -> Option<(Claim, Vec<Claimed>)> {
        match self.is_vouched().await {
            Ok(true) => {}
            // Nothing is claimed that will not be delivered: it would look as if it had been begun.
            Ok(false) => return Some((Claim::default(), Vec::new())),
            Err(error) => {
                self.failed("beat", &error);
                return None;
            }
        }
        let claim = Claim::default();
        let lease = self.rules.lease();
        loop {
            // What it claims is anybody's once its lease is over.
            let sinks = [&*self.name];
            let claimed = self.store.claim(room, &sinks, lease, claim.attempt);
            match answer(claimed, claim.sent + lease).await {
                Ok(claimed) => return Some((claim, claimed)),
                Err(error) if !self.repeat("claim", &error, claim.sent + CLAIM_PATIENCE).await => {
                    return None;
                }
                Err(_) => {}
            }
        }
    }

    /// Whether the store is known to have what it acknowledged, or somebody has decided to go on
    /// without. Asked of it only if it may have become another one.
    async fn is_vouched(&self) -> Result<bool, StoreError> {
        let Some(canary) = &self.canary else { return Ok(true) };
        let regression = match canary.is_vouched() {
            true => canary.regression(),
            false => answer(Box::pin(canary.vouch()), Instant::now() + CLAIM_PATIENCE).await?,
        };
        Ok(regression.is_none())
    }

    pub(super) async fn deliver(self: Arc<Self>, claim: Claim, claimed: Claimed) -> Ended {
        // The store may have become another one while it was claimed.
        let settlement = match self.is_vouched().await {
            Ok(true) => match self.refusal(&claimed, claim.sent.elapsed()) {
                Some(settlement) => settlement,
                None => self.judge(&claimed, self.one_try(&claimed).await),
            },
            Ok(false) | Err(_) => Settlement::Retry {
                after: LOSS_PAUSE,
                ambiguous: claimed.ambiguous,
                why: "the store may have lost data, and with it that this was delivered".into(),
            },
        };
        self.settle(claim, &claimed, settlement).await
    }

    /// Why a message that was claimed is not delivered now.
    fn refusal(&self, claimed: &Claimed, age: Duration) -> Option<Settlement> {
        if claimed.ambiguous && !self.sink.is_idempotent() {
            return Some(dead("an earlier delivery may have acted".to_owned()));
        }
        // Only one that ended its process again and again comes here.
        if claimed.attempts > self.rules.attempts_max {
            return Some(dead(format!("no delivery of {} ended", claimed.attempts - 1)));
        }
        // A relay that was paused after its claim must not act on a right that it may have lost.
        let over = age + self.rules.delivery_timeout >= self.rules.lease();
        over.then(|| Settlement::Retry {
            after: Duration::ZERO,
            ambiguous: false,
            why: "the lease was nearly over before the delivery began".into(),
        })
    }

    /// One try. One that panics or takes too long may have acted.
    async fn one_try(&self, claimed: &Claimed) -> Delivered {
        let delivery = Delivery {
            message_id: claimed.message_id,
            key: claimed.derived_key.clone(),
            message: claimed.message.clone(),
            attempt_number: claimed.attempts,
        };
        let delivering = async { self.sink.deliver(delivery).await };
        let delivering = AssertUnwindSafe(delivering).catch_unwind();
        match timeout(self.rules.delivery_timeout, delivering).await {
            Ok(Ok(delivered)) => delivered,
            Ok(Err(_)) => Delivered::Ambiguous("the sink panicked".to_owned()),
            Err(_) => Delivered::Ambiguous("the delivery took too long".to_owned()),
        }
    }

    fn judge(&self, claimed: &Claimed, delivered: Delivered) -> Settlement {
        match delivered {
            Delivered::Done { provider_id } => {
                Settlement::Done { provider_id: provider_id.map(Into::into) }
            }
            Delivered::Refused(why) => dead(why),
            Delivered::NotDelivered(why) => self.again(claimed, Duration::ZERO, false, why),
            Delivered::Later { after, why } => {
                self.again(claimed, after.min(LATER_MAX), false, why)
            }
            Delivered::Ambiguous(why) => {
                observe::outbox_ambiguous(&self.name);
                match self.sink.is_idempotent() {
                    true => self.again(claimed, Duration::ZERO, true, why),
                    false => dead(format!("may have acted: {why}")),
                }
            }
        }
    }

    fn again(
        &self,
        claimed: &Claimed,
        least: Duration,
        ambiguous: bool,
        why: String,
    ) -> Settlement {
        if claimed.attempts >= self.rules.attempts_max {
            return dead(format!("given up after {} attempts: {why}", claimed.attempts));
        }
        let random = self.random.lock().unwrap_or_else(PoisonError::into_inner).next_u64();
        let after = self.rules.backoff.delay(claimed.attempts, random).max(least);
        Settlement::Retry { after, ambiguous, why: shortened(why) }
    }

    /// Writes how it ended, and repeats that as long as nobody else can have claimed the message.
    async fn settle(&self, claim: Claim, claimed: &Claimed, settlement: Settlement) -> Ended {
        let id = claimed.message_id;
        let applied = loop {
            let settled = self.store.settle(id, claim.attempt, claimed.fence, settlement.clone());
            match answer(settled, claim.sent + self.rules.lease()).await {
                Ok(applied) => break applied,
                Err(error) => {
                    if !self.repeat("settle", &error, claim.sent + self.rules.lease()).await {
                        error!(message = %id, sink = %self.name, "what came of a delivery is lost");
                        return Ended::NotWritten;
                    }
                }
            }
        };
        let (message, sink, attempts) = (id, &*self.name, claimed.attempts);
        if !applied {
            warn!(%message, sink, attempts, "a delivery ended after its message was claimed anew");
            observe::outbox_superseded(sink);
            return Ended::Superseded;
        }
        match settlement {
            Settlement::Done { .. } => {
                debug!(%message, sink, attempts, "a message was delivered");
                observe::outbox_delivered(sink);
                Ended::Delivered
            }
            Settlement::Retry { after, ambiguous, .. } => {
                info!(%message, sink, attempts, ambiguous, ?after, "a delivery is to be repeated");
                observe::outbox_retried(sink);
                Ended::Retried
            }
            Settlement::Dead { .. } => {
                error!(%message, sink, attempts, "a message is a dead letter");
                observe::outbox_dead(sink);
                Ended::Dead
            }
        }
    }

    /// Waits before a store call is repeated; `false` if it is not to be.
    async fn repeat(&self, call: &'static str, error: &StoreError, until: Instant) -> bool {
        self.failed(call, error);
        if !error.may_be_repeated() || Instant::now() + PAUSE >= until {
            return false;
        }
        sleep(PAUSE).await;
        true
    }

    fn failed(&self, call: &'static str, error: &StoreError) {
        warn!(
            call,
            sink = %self.name,
            %error,
            source = std::error::Error::source(error),
            "a store call failed"
        );
        observe::outbox_store_error(&self.name);
    }
}

/// What the store answers, if it does so in time. A store may be silent for ever.
async fn answer<T>(call: StoreFuture<'_, T>, until: Instant) -> Result<T, StoreError> {
    let late = || StoreError::new(StoreErrorKind::Ambiguous, "any", "no answer in time");
    timeout_at(until, call).await.unwrap_or_else(|_| Err(late()))
}

fn dead(why: String) -> Settlement {
    Settlement::Dead { why: shortened(why) }
}

fn shortened(mut why: String) -> Box<str> {
    why.truncate(why.floor_char_boundary(WHY_MAX));
    why.into()
}
