//! Beats of this process. In a Cluster every bucket has its own, since each master loses for itself.

use std::time::Duration;

use futures_util::{StreamExt as _, stream};
use tracing::warn;

use super::{
    RedisConnectError, RedisStore,
    address::member,
    error::{unavailable, unreadable},
    evictions::Evictions,
    row::{audit_args, micros, number},
    script::Script,
    tally::Name,
    workers::AT_ONCE,
};
use crate::{
    clock::Timestamp,
    machine,
    record::AuditRecord,
    store::{Beat, Beaten, Pulse, Regression, StoreError},
};

/// How often a beat is tried that others of the same node are in the way of.
const TRIES_MAX: u32 = 20;

/// While a server goes on evicting, what is lost is written down anew this often.
const EVICTING_PAUSE: Duration = Duration::from_secs(60);

/// What is known of a node before it beats, in one bucket.
struct Felt {
    now: Timestamp,
    /// Its last beat, as it is kept.
    kept: String,
    last: Option<Beaten>,
    /// What was acknowledged to this process, as far as it was asked for.
    asked: Vec<(Name, u64)>,
    /// Some of it is not there.
    lost: bool,
    /// What its server has evicted, if that is told.
    evictions: Option<Evictions>,
    /// Something may have been evicted since the last beat.
    evicted: bool,
    /// The loss that is known, as it is kept.
    kept_loss: String,
    absent: u64,
}

impl RedisStore {
    pub(super) async fn beat_once(&self, beat: Beat) -> Result<Pulse, StoreError> {
        for _ in 0..TRIES_MAX {
            if let Some(pulse) = self.try_to_beat(beat).await? {
                return Ok(pulse);
            }
        }
        Err(unavailable("others beat for the same node"))
    }

    /// First what every bucket says, then what was lost in any of them, at home; then the beat.
    async fn try_to_beat(&self, beat: Beat) -> Result<Option<Pulse>, StoreError> {
        self.keep_layout().await?;
        let evictions = &self.evictions().await?;
        let buckets: Vec<u16> = match self.client.cluster {
            true => self.buckets().collect(),
            false => vec![self.client.home()],
        };
        let feel = |bucket| async move {
            let Some(evictions) = evictions.get(&self.client.server(bucket).address) else {
                return Ok(None);
            };
            let felt = self.feel(bucket, beat, evictions.clone()).await?;
            Ok::<_, StoreError>(Some((bucket, felt)))
        };
        let mut felt: Vec<(u16, Felt)> = Vec::new();
        let mut asked = stream::iter(buckets).map(feel).buffer_unordered(AT_ONCE);
        while let Some(one) = asked.next().await {
            // A bucket that has moved since the servers were asked.
            let Some(one) = one? else { return Ok(None) };
            felt.push(one);
        }
        drop(asked);
        let home = self.client.home();
        let at_home = felt.iter().position(|(bucket, _)| *bucket == home).ok_or_else(unreadable)?;
        let (_, at_home) = felt.swap_remove(at_home);
        let known = read_loss(&at_home.kept_loss)?;
        let is_new = known.is_none_or(|known| known.found.plus(EVICTING_PAUSE) <= at_home.now);
        let is_behind = |felt: &Felt| {
            let is_behind = felt.last.map_or(0, |last| last.count) < beat.acked;
            is_behind || felt.lost || (felt.evicted && is_new)
        };
        let home_is_behind = is_behind(&at_home).then_some((&home, &at_home));
        let behind = felt.iter().map(|(bucket, felt)| (bucket, felt));
        let behind = behind.filter(|(_, felt)| is_behind(felt)).chain(home_is_behind);
        let mut last = at_home.last;
        let mut acked = beat.acked;
        for (number, (bucket, felt)) in behind.enumerate() {
            match &felt.evictions {
                // Once, not for each bucket of a server.
                Some(evictions) if felt.evicted && number == 0 => evictions.tell(*bucket),
                Some(_) if felt.evicted => {}
                _ => warn!(bucket, "a bucket has lost what was acknowledged"),
            }
            // What is evicted may be as old as the store.
            let at = felt.last.map(|last| last.at).filter(|_| !felt.evicted);
            // From then on that the first of them does not know any more.
            let since = match number {
                0 => at,
                _ => last.map(|last| last.at).zip(at).map(|(one, other)| one.min(other)),
            };
            last = since.map(|at| Beaten { count: 0, at });
            acked = acked.max(1);
        }
        let step = machine::beat(last, known, &Beat { acked, ..beat }, at_home.now);
        let count = step.beaten.count;
        let absent = felt.iter().map(|(_, felt)| felt.absent).max().unwrap_or(0);
        let absent = u32::try_from(absent.max(at_home.absent)).unwrap_or(u32::MAX);
        let loss = step.pulse.regression.map(encode_loss).unwrap_or_default();
        let audit = step.audit.as_ref();
        if !self.put_beat(home, beat, &at_home, count, &loss, audit).await? {
            return Ok(None);
        }
        let put = |(bucket, felt): (u16, Felt)| async move {
            self.put_beat(bucket, beat, &felt, count, &felt.kept_loss, None).await
        };
        let mut puts = stream::iter(felt).map(put).buffer_unordered(AT_ONCE);
        while let Some(put) = puts.next().await {
            if !put? {
                return Ok(None);
            }
        }
        Ok(Some(Pulse { count, regression: step.pulse.regression, absent }))
    }

    /// In a store that was emptied, somebody else might begin with another one: two would not find each
    /// other's records.
    async fn keep_layout(&self) -> Result<(), StoreError> {
        match self.agree_on_layout().await {
            Ok(buckets) if buckets == self.client.layout.buckets => Ok(()),
            Err(RedisConnectError::Unreachable(error)) => Err(error),
            Ok(_) | Err(_) => Err(unavailable("the records are laid out in another way by now")),
        }
    }

    async fn feel(
        &self,
        bucket: u16,
        beat: Beat,
        evictions: Option<Evictions>,
    ) -> Result<Felt, StoreError> {
        let asked = self.client.tally(bucket).all();
        let keys = vec![self.client.layout.key(bucket, "beats", b""), self.client.writers(bucket)];
        let mut args =
            vec![self.client.now(), beat.node.to_string().into(), self.run_of(bucket).await?];
        args.extend(self.client.told(&asked));
        let mut answer = self.client.call(bucket, Script::Pulse, keys, args).await?;
        let now = answer.time()?;
        let kept = answer.text()?;
        let lost = answer.natural()? == 1;
        let kept_loss = answer.text()?;
        let absent = answer.natural()?;
        let before = answer.text()?;
        let evicted = evictions.as_ref().map(|it| it.may_have_lost(&before)).transpose()?;
        Ok(Felt {
            now,
            last: read_beaten(&kept)?,
            kept,
            asked,
            lost,
            evicted: evicted.unwrap_or(false),
            evictions,
            kept_loss,
            absent,
        })
    }

    async fn put_beat(
        &self,
        bucket: u16,
        beat: Beat,
        felt: &Felt,
        count: u64,
        loss: &str,
        audit: Option<&AuditRecord>,
    ) -> Result<bool, StoreError> {
        let keys = vec![self.client.layout.key(bucket, "beats", b""), self.client.writers(bucket)];
        let mut args = vec![
            self.client.now(),
            beat.node.to_string().into(),
            felt.kept.clone().into(),
            count.to_string().into(),
            self.run_of(bucket).await?,
            felt.kept_loss.clone().into(),
            loss.into(),
            number(micros(machine::BEATS_KEPT)),
            felt.evictions.as_ref().map(Evictions::text).unwrap_or_default().into_bytes(),
        ];
        // What was found to be gone is not asked for again.
        let still_there = if felt.lost { &[][..] } else { &felt.asked };
        args.push(still_there.len().to_string().into());
        args.extend(self.client.told(still_there));
        if let Some(audit) = audit {
            args.push(member(&audit.id));
            args.extend(audit_args(audit));
        }
        let (name, mut answer) = self.call_counted(bucket, Script::Beat, keys, args).await?;
        if answer.bytes()? != "applied" {
            return Ok(false);
        }
        let tally = self.client.tally(bucket);
        tally.acknowledge(name, answer.natural()?);
        tally.forget(&felt.asked, name);
        Ok(true)
    }

    /// The server process that answers for a bucket.
    async fn run_of(&self, bucket: u16) -> Result<Vec<u8>, StoreError> {
        let open = self.client.server(bucket).open().await;
        let open = open.map_err(|error| {
            unavailable("there is no connection to the server").with_source(error.to_string())
        })?;
        Ok(open.run.as_bytes().to_vec())
    }

    pub(super) async fn acknowledge_loss(
        &self,
        reason: &str,
    ) -> Result<Option<Regression>, StoreError> {
        let home = self.client.home();
        let key = self.client.layout.key(home, "g", b"");
        for _ in 0..TRIES_MAX {
            let mut get = redis::cmd("GET");
            get.arg(&key);
            let kept = match self.client.command(home, &get).await? {
                redis::Value::Nil => return Ok(None),
                kept => super::value::bytes(kept)?,
            };
            let text = std::str::from_utf8(&kept).map_err(|_| unreadable())?;
            let Some(known) = read_loss(text)? else { return Ok(None) };
            let now = self.server_time(home).await?;
            let audit = AuditRecord::acknowledged(known, reason, now);
            let member = member(&audit.id);
            if self.replace_value(home, key.clone(), &kept, b"", &member, &[audit]).await? {
                return Ok(Some(known));
            }
        }
        Err(unavailable("others say what was lost"))
    }
}

/// As `beat.lua` keeps it: count, time, server process, since when there, until when elsewhere.
fn read_beaten(kept: &str) -> Result<Option<Beaten>, StoreError> {
    if kept.is_empty() {
        return Ok(None);
    }
    let mut parts = kept.split(' ');
    let count = parts.next().and_then(|count| count.parse().ok()).ok_or_else(unreadable)?;
    let at = parts.next().and_then(|at| at.parse().ok()).ok_or_else(unreadable)?;
    Ok(Some(Beaten { count, at: Timestamp::from_micros(at) }))
}

fn encode_loss(loss: Regression) -> String {
    let since = loss.since.map_or("-".to_owned(), |since| since.as_micros().to_string());
    format!("{since} {}", loss.found.as_micros())
}

fn read_loss(kept: &str) -> Result<Option<Regression>, StoreError> {
    if kept.is_empty() {
        return Ok(None);
    }
    let (since, found) = kept.split_once(' ').ok_or_else(unreadable)?;
    let time = |text: &str| text.parse().map(Timestamp::from_micros).map_err(|_| unreadable());
    let since = if since == "-" { None } else { Some(time(since)?) };
    Ok(Some(Regression { since, found: time(found)? }))
}
