//! Beats of this process. In a Cluster every bucket has its own, since each master loses for itself.

use std::time::Duration;

use futures_util::{StreamExt as _, TryStreamExt as _, stream};
use tracing::warn;

use super::{
    RedisConnectError, RedisStore,
    address::member,
    error::{unavailable, unreadable},
    evictions::Evictions,
    migrate::MIGRATIONS,
    row::{audit_args, micros, number},
    script::Script,
    tally::Name,
    workers::AT_ONCE,
};
use crate::{
    clock::Timestamp,
    machine,
    record::AuditRecord,
    store::{Beat, Beaten, Pulse, Regression, StoreError, site::By},
};

/// How often a beat is tried that others of the same node are in the way of.
const TRIES_MAX: u32 = 20;

/// That a server evicts is told again when it was not found for so long. That it may, is taken for a loss
/// this often.
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
    /// What its server had evicted, as it is kept.
    kept_evictions: String,
    /// What it has evicted by now, if that is told.
    evictions: Option<Evictions>,
    /// Something was evicted since the last beat.
    evicted: bool,
    /// The loss that is known, as it is kept.
    kept_loss: String,
    absent: u64,
}

impl Felt {
    /// Whether it is known without asking what was evicted.
    fn is_behind(&self, beat: Beat) -> bool {
        self.lost || self.last.map_or(0, |last| last.count) < beat.acked
    }

    fn may_evict(&self) -> bool {
        self.evictions.as_ref().is_some_and(Evictions::may_come)
    }

    /// When it last had all, if that is known: what is evicted may be as old as the store.
    fn last_whole(&self) -> Option<Timestamp> {
        self.last.map(|last| last.at).filter(|_| !self.evicted && !self.may_evict())
    }
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
        let feel = |bucket| async move {
            let felt = self.feel(bucket, beat).await?;
            Ok::<_, StoreError>((bucket, felt))
        };
        let asked = stream::iter(self.buckets_with_beats()).map(feel).buffer_unordered(AT_ONCE);
        let mut felt: Vec<(u16, Felt)> = asked.try_collect().await?;
        // Asked afterwards, so that it is not less than what another node has written down meanwhile.
        let evictions = self.evictions().await?;
        for (bucket, felt) in &mut felt {
            // A bucket may have moved since the servers were asked.
            let server = self.client.server(*bucket);
            let Some(told) = evictions.get(&server.address) else { return Ok(None) };
            let come = told.as_ref().map(|it| it.have_come(&felt.kept_evictions)).transpose()?;
            (felt.evicted, felt.evictions) = (come.unwrap_or(false), told.clone());
        }
        let home = self.client.home();
        let at_home = felt.iter().position(|(bucket, _)| *bucket == home).ok_or_else(unreadable)?;
        let (_, at_home) = felt.swap_remove(at_home);
        let known = read_loss(&at_home.kept_loss)?;
        // A loss of any age, as evictions are.
        let is_known = known.is_some_and(|known| {
            known.since.is_none() && at_home.now < known.found.plus(EVICTING_PAUSE)
        });
        let home_too = [(&home, &at_home)];
        let all = felt.iter().map(|(bucket, felt)| (bucket, felt)).chain(home_too);
        // What is evicted is one more loss each time, however often it is told.
        let behind: Vec<_> = all
            .filter(|(_, it)| it.is_behind(beat) || it.evicted || (it.may_evict() && !is_known))
            .collect();
        let is_news = !is_known || behind.iter().any(|(_, felt)| felt.is_behind(beat));
        tell(&behind, beat, is_known);
        // From then on that the first of them does not know any more.
        let since = behind.iter().map(|(_, felt)| felt.last_whole());
        let since = since.reduce(|one, other| one.zip(other).map(|(one, other)| one.min(other)));
        let (last, acked) = match since {
            None => (at_home.last, beat.acked),
            Some(since) => (since.map(|at| Beaten { count: 0, at }), beat.acked.max(1)),
        };
        let step = machine::beat(last, known, &Beat { acked, ..beat }, at_home.now);
        let count = step.beaten.count;
        let absent = felt.iter().map(|(_, felt)| felt.absent).max().unwrap_or(0);
        let absent = u32::try_from(absent.max(at_home.absent)).unwrap_or(u32::MAX);
        let loss = step.pulse.regression.map(encode_loss).unwrap_or_default();
        let audit = step.audit.as_ref().filter(|_| is_news);
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
        match self.bring_up(MIGRATIONS, By::Start).await {
            Ok((buckets, _)) if buckets == self.client.layout.buckets => Ok(()),
            Err(RedisConnectError::Unreachable(error)) => Err(error),
            Ok(_) | Err(_) => Err(unavailable("the records are laid out in another way by now")),
        }
    }

    async fn feel(&self, bucket: u16, beat: Beat) -> Result<Felt, StoreError> {
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
        Ok(Felt {
            now,
            last: read_beaten(&kept)?,
            kept,
            asked,
            lost,
            kept_evictions: answer.text()?,
            evictions: None,
            evicted: false,
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

/// Of evictions once, not for each bucket of a server, and not with each beat.
fn tell(behind: &[(&u16, &Felt)], beat: Beat, is_known: bool) {
    for (bucket, _) in behind.iter().filter(|(_, felt)| felt.is_behind(beat)) {
        warn!(bucket, "a bucket has lost what was acknowledged");
    }
    let evicts = behind.iter().find(|(_, felt)| felt.evicted || felt.may_evict());
    if let (Some((bucket, felt)), false) = (evicts, is_known)
        && let Some(evictions) = &felt.evictions
    {
        evictions.tell(**bucket);
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
