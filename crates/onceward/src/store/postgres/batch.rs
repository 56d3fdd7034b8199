//! Reserves and writes, many in one call and in one commit.

use sqlx::postgres::PgRow;
use tracing::warn;

use super::{
    error::{Remedy, STORE, TRIES_MAX, answer_lost, pause, remedy},
    link::{Call, Caller as _, Link, Lost, call},
    reserve::{Reserve, bind_reserves, classes, take_seconds},
    write::{GuardedWrite, Locked, Writes, attempts_in_one, bind_completes, guards},
};
use crate::store::{StoreError, StoreErrorKind, lane::Element};

/// What stands in line for a batch.
pub(super) enum Work {
    Reserve(Reserve),
    Write(GuardedWrite),
}

impl Element for Work {
    type Link = Link;
    const STORE: &'static str = STORE;
    const BATCH_MAX: usize = 256;
    const BATCH_EAGER: usize = 24;

    fn bytes(&self) -> usize {
        match self {
            Work::Reserve(reserve) => reserve.bytes(),
            Work::Write(write) => write.bytes(),
        }
    }

    fn is_abandoned(&self) -> bool {
        match self {
            Work::Reserve(reserve) => reserve.sender.is_closed(),
            Work::Write(write) => write.sender.is_closed(),
        }
    }

    async fn run(batch: Vec<Self>, link: &mut Link) {
        let (mut reserves, mut writes) = (Vec::new(), Vec::new());
        for work in batch {
            match work {
                Work::Reserve(reserve) => reserves.push(reserve),
                Work::Write(write) => writes.push(write),
            }
        }
        let writes = Writes::of(writes);
        if reserves.is_empty() || writes.completes.is_empty() {
            writes.send_all(link).await;
            Reserve::send_all(reserves, false, link).await;
        } else {
            send_together(reserves, writes, link).await;
        }
    }
}

/// One call and one commit for the replies and for one class of reserves. What is in the way of one kind
/// must not hold up the other: then each goes by itself.
async fn send_together(reserves: Vec<Reserve>, writes: Writes, link: &mut Link) {
    let mut classes = classes(reserves).into_iter();
    let mut reserves = classes.next().unwrap_or_default();
    let seconds = take_seconds(&mut reserves);
    let Writes { completes, .. } = writes;
    let mut lost = false;
    let sent = send(link, &mut lost, |link| {
        let both = call(&link.statements().both);
        let both = bind_completes(both, link, &guards(&completes), Locked::InTheWay);
        bind_reserves(both, link, &reserves)
    })
    .await;
    match sent {
        Sent::Answered(rows) => {
            GuardedWrite::answer_all(completes, &attempts_in_one(&rows), lost, link).await;
            reserves = Reserve::answer_all(reserves, &rows, lost, link).await;
        }
        Sent::Locked => GuardedWrite::send_unlocked(completes, lost, link).await,
        Sent::Refused => GuardedWrite::send_all(completes, lost, link).await,
        Sent::Failed(error) => {
            GuardedWrite::fail_all(completes, &error);
            Reserve::fail_all(std::mem::take(&mut reserves), &error);
        }
    }
    Reserve::send_all(reserves, lost, link).await;
    Reserve::send_all(seconds, false, link).await;
    for class in classes {
        Reserve::send_class(class, false, link).await;
    }
    Writes { completes: Vec::new(), ..writes }.send_all(link).await;
}

/// What came of sending a batch.
pub(super) enum Sent {
    Answered(Vec<PgRow>),
    /// A row is locked for longer than a batch waits.
    Locked,
    /// The server refused it: it may be about one element.
    Refused,
    Failed(StoreError),
}

/// Sends the same call until it is answered, or until there is no point. `lost` becomes true when a
/// try may have been carried out and did not say so.
pub(super) async fn send(
    link: &mut Link,
    lost: &mut bool,
    bind: impl Fn(&Link) -> Call<'static>,
) -> Sent {
    for tries in 1.. {
        let failed = match link.fetch(bind(link)).await {
            Ok(rows) => return Sent::Answered(rows),
            Err(failed) => failed,
        };
        let (again, reconnect) = match &failed {
            Lost::NotSent(_) | Lost::NoAnswer => (false, false),
            Lost::Failed(error) => match remedy(error) {
                Remedy::Reconnect => (tries < TRIES_MAX, true),
                Remedy::Again => (tries < TRIES_MAX, false),
                Remedy::Locked => return Sent::Locked,
                Remedy::Refused => {
                    // One by one, most will come through: a defect of ours would go unnoticed.
                    warn!(%error, "the server refused a batch");
                    return Sent::Refused;
                }
            },
        };
        let error = failed.store_error();
        *lost |= error.kind() == StoreErrorKind::Ambiguous;
        if !again {
            return Sent::Failed(if *lost { answer_lost(error) } else { error });
        }
        if !reconnect {
            pause().await;
        }
    }
    unreachable!("the loop ends by itself")
}

/// The same error for each of several callers.
pub(super) fn for_each(error: &StoreError) -> StoreError {
    let source = std::error::Error::source(error).map(ToString::to_string);
    StoreError::new(error.kind(), STORE, error.to_string()).with_source(source.unwrap_or_default())
}
