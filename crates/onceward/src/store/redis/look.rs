//! Steps on one record. Those that are made for every request have a script of their own, which returns
//! the record when it cannot decide; then, and for everything else: look, decide by the machine, and
//! change the record if it is still what was looked at.

use std::time::Duration;

use bytes::Bytes;

use super::{
    RedisStore,
    address::member,
    error::{damaged, is_full, pause, unavailable, unreadable},
    link::Call,
    promise::Promise,
    row::{audit_args, encode_reply, fields, lease_index, micros, number, places, plain_fields},
    row::{read_record, stamp, state_place, times},
    script::Script,
    tally::Name,
    value::Parts,
};
use crate::{
    clock::Timestamp,
    machine::{self, Change, Step},
    record::{AuditRecord, Lease, Record, RecordId, State},
    store::{
        Advance, Advanced, Ask, Mode, Reservation, StoreError, Write, Written,
        request::encode_request,
    },
};

/// How often a record is looked at again that others keep changing.
const LOOKS_MAX: u32 = 100;

/// Of these it is looked at so many times without a pause.
const LOOKS_EAGER: u32 = 10;

/// How often a call is made again because something is lost that was acknowledged before it.
const LOSSES_MAX: u32 = 3;

/// Longer times are not exact in a script.
const TIME_MAX: Duration = Duration::from_secs(60 * 60 * 24 * 365 * 100);

/// A record as it was seen.
pub(super) struct Seen {
    pub(super) record: Option<Box<Record>>,
    /// By which it is told from what it was before and will be after.
    pub(super) stamp: Vec<u8>,
    pub(super) now: Timestamp,
    /// Whether the step that was asked about is saved.
    pub(super) saved: bool,
}

/// What is written together with a record.
#[derive(Default)]
pub(super) struct Beside<'a> {
    pub(super) request: Option<&'a [u8]>,
    pub(super) step: Option<(&'a str, &'a [u8])>,
    pub(super) provider_id: Option<&'a [u8]>,
}

/// What came of a change.
pub(super) enum Changed {
    Applied,
    Conflict(Seen),
}

impl RedisStore {
    pub(super) async fn reserve_one(&self, ask: Ask) -> Result<Reservation, StoreError> {
        let request = ask.request.as_deref().map(encode_request);
        let is_far = [ask.lease, ask.retention, ask.queued_for].iter().any(|it| *it > TIME_MAX);
        let mut seen = None;
        if ask.mode != Mode::LookupOnly && !is_far {
            match self.create(&ask, request.as_deref()).await? {
                Created::Now(now) => return Ok(machine::reserve(None, &ask, now).answer),
                Created::Found(found) => seen = Some(found),
            }
        }
        // Whoever only moves a record on does not leave a request with it.
        let beside = |answer: &Reservation| Beside {
            request: request.as_deref().filter(|_| machine::keeps_request(answer)),
            ..Beside::default()
        };
        let decide = |seen: &Seen| machine::reserve(seen.record.as_deref(), &ask, seen.now);
        self.step(&ask.id, seen, Look::Record, beside, decide).await
    }

    /// As the machine makes a record at the time 0: what it says of times is then the distance from now.
    async fn create(&self, ask: &Ask, request: Option<&[u8]>) -> Result<Created, StoreError> {
        let template = machine::reserve(None, ask, Timestamp::from_micros(0));
        let Change::Put(record) = template.change else {
            return Err(unavailable("nothing is made of this"));
        };
        let member = member(&ask.id);
        let bucket = self.bucket(&member);
        let plain = plain_fields(&record);
        let mut args = vec![
            self.client.now(),
            member.clone(),
            new_stamp(),
            state_place(&record).0.into(),
            lease_index(&record).into(),
            number(record.lease_until.as_micros()),
            request.unwrap_or_default().to_vec(),
            plain.len().to_string().into_bytes(),
        ];
        for (name, value) in plain {
            args.extend([name.into(), value]);
        }
        for (name, time) in times(&record) {
            args.extend([name.into(), number(time.as_micros())]);
        }
        // The fence of a new record is the time.
        args.extend(["f".into(), number(0)]);
        let keys = vec![self.record_key(bucket, &member), self.client.writers(bucket)];
        let (name, mut answer) = match self.call_counted(bucket, Script::Reserve, keys, args).await
        {
            Ok(answer) => answer,
            // What is there can be told though there is no room for more.
            Err(full) if is_full(&full) => match self.look(&ask.id, Look::Record).await {
                Ok(seen) if seen.record.is_some() => return Ok(Created::Found(seen)),
                _ => return Err(full),
            },
            Err(error) => return Err(error),
        };
        match &*answer.bytes()? {
            b"created" => {
                let now = answer.time()?;
                self.client.tally(bucket).acknowledge(name, answer.natural()?);
                Ok(Created::Now(now))
            }
            b"found" => Ok(Created::Found(read_seen(&ask.id, &mut answer)?)),
            _ => Err(unreadable()),
        }
    }

    pub(super) async fn write_one(
        &self,
        lease: &Lease,
        write: Write,
    ) -> Result<Written, StoreError> {
        let seen = match self.write_at_once(lease, &write).await? {
            None => return Ok(Written::Applied),
            Some(seen) => seen,
        };
        let decide =
            |seen: &Seen| machine::write(seen.record.as_deref(), lease, write.clone(), seen.now);
        self.step(&lease.id, Some(seen), Look::Record, |_| Beside::default(), decide).await
    }

    /// `None` when it was applied.
    async fn write_at_once(
        &self,
        lease: &Lease,
        write: &Write,
    ) -> Result<Option<Seen>, StoreError> {
        let member = member(&lease.id);
        let bucket = self.bucket(&member);
        let (what, details) = match write {
            Write::Renew(by) if *by > TIME_MAX => {
                return self.look(&lease.id, Look::Record).await.map(Some);
            }
            Write::Renew(by) => ("renew", vec![number(micros(*by))]),
            Write::Complete(reply) => {
                ("complete", vec![reply.status.as_str().into(), encode_reply(reply)])
            }
            Write::Release(why) => ("release", vec![why.as_bytes().to_vec()]),
            Write::MarkUnknown(why) => ("unknown", vec![why.as_bytes().to_vec()]),
        };
        let mut args = vec![
            self.client.now(),
            member.clone(),
            new_stamp(),
            lease.attempt.as_bytes().to_vec(),
            number(lease.fence.number()),
            what.into(),
        ];
        args.extend(details);
        let keys = vec![self.record_key(bucket, &member), self.client.writers(bucket)];
        let (name, mut answer) = self.call_counted(bucket, Script::Write, keys, args).await?;
        match &*answer.bytes()? {
            b"applied" => {
                self.client.tally(bucket).acknowledge(name, answer.natural()?);
                Ok(None)
            }
            b"found" => read_seen(&lease.id, &mut answer).map(Some),
            _ => Err(unreadable()),
        }
    }

    pub(super) async fn advance_one(
        &self,
        lease: &Lease,
        advance: Advance,
    ) -> Result<Advanced, StoreError> {
        let beside = |answer: &Advanced| {
            let step = match (answer, &advance) {
                (Advanced::Applied, Advance::Save { name, result }) => Some((&**name, &result[..])),
                _ => None,
            };
            Beside { step, ..Beside::default() }
        };
        let decide =
            |seen: &Seen| machine::advance(seen.record.as_deref(), lease, &advance, seen.saved);
        self.step(&lease.id, None, Look::Step(advance.name()), beside, decide).await
    }

    /// One atomic step on one record. `beside` says what is written with it, by the answer.
    pub(super) async fn step<'r, A: Promise>(
        &self,
        id: &RecordId,
        mut seen: Option<Seen>,
        what: Look<'_>,
        beside: impl Fn(&A) -> Beside<'r>,
        decide: impl Fn(&Seen) -> Step<A>,
    ) -> Result<A, StoreError> {
        for looks in 0..LOOKS_MAX {
            let looked = match seen.take() {
                Some(seen) => seen,
                None => self.look(id, what).await?,
            };
            let step = decide(&looked);
            let beside = beside(&step.answer);
            let is_kept = match &step.change {
                Change::Keep => true,
                Change::Put(record) => {
                    looked.record.as_ref() == Some(record) && beside.request.is_none()
                }
                Change::Remove => false,
            };
            let is_as_it_was = is_kept && step.audit.is_none() && beside.step.is_none();
            let change = match is_as_it_was {
                true if !step.answer.is_promise() => return Ok(step.answer),
                true => &Change::Keep,
                false => &step.change,
            };
            let audits = step.audit.as_slice();
            match self.change(id, &looked, change, audits, beside).await? {
                Changed::Applied => return Ok(step.answer),
                // What is beside it is not told of in the same answer.
                Changed::Conflict(now) if matches!(what, Look::Record) => seen = Some(now),
                Changed::Conflict(_) => {}
            }
            if looks >= LOOKS_EAGER {
                pause(1).await;
            }
        }
        Err(unavailable("a record keeps changing"))
    }

    pub(super) async fn look(&self, id: &RecordId, what: Look<'_>) -> Result<Seen, StoreError> {
        let member = member(id);
        let bucket = self.bucket(&member);
        let mut args = vec![self.client.now(), member.clone()];
        match what {
            Look::Record => args.push("record".into()),
            Look::Step(_) => args.push("steps".into()),
        }
        let keys = vec![self.record_key(bucket, &member)];
        let mut answer = self.client.call(bucket, Script::Look, keys, args).await?;
        let mut seen = read_seen(id, &mut answer)?;
        if let Look::Step(name) = what {
            let kept: Vec<Bytes> =
                answer.parts()?.map(super::value::bytes).collect::<Result<_, _>>()?;
            let is_saved =
                |name: &str| kept.iter().any(|it| it.strip_prefix(b"s") == Some(name.as_bytes()));
            seen.saved = is_saved(name);
            let record = seen.record.as_ref().filter(|it| it.state == State::InProgress);
            let point = record.and_then(|it| it.progress.recovery_point.as_deref());
            // With one more the list would look whole again, and what is missing be done again.
            if point.is_some_and(|point| !is_saved(point)) {
                return Err(damaged("its steps"));
            }
        }
        Ok(seen)
    }

    /// Changes a record if it is still what was seen.
    pub(super) async fn change(
        &self,
        id: &RecordId,
        seen: &Seen,
        change: &Change,
        audits: &[AuditRecord],
        beside: Beside<'_>,
    ) -> Result<Changed, StoreError> {
        let member = member(id);
        let bucket = self.bucket(&member);
        let (what, flags) = match change {
            Change::Keep => ("keep", ""),
            Change::Remove => ("remove", "bn"),
            Change::Put(record) => {
                let before = seen.record.as_deref();
                let anew = before.is_some_and(|before| machine::is_made_anew(before, record));
                match (record.state.is_terminal(), anew) {
                    (true, true) => ("put", "bn"),
                    (true, false) => ("put", "b"),
                    (false, true) => ("put", "bn"),
                    (false, false) => ("put", ""),
                }
            }
        };
        let (step_name, step_result) = beside.step.unwrap_or_default();
        let mut args = vec![
            self.client.now(),
            member.clone(),
            seen.stamp.clone(),
            new_stamp(),
            what.into(),
            flags.into(),
            beside.request.unwrap_or_default().to_vec(),
            step_name.into(),
            step_result.to_vec(),
            beside.provider_id.unwrap_or_default().to_vec(),
            audits.len().to_string().into_bytes(),
        ];
        args.extend(audits.iter().flat_map(audit_args));
        if let Change::Put(record) = change {
            let places = places(record);
            args.push(places.len().to_string().into_bytes());
            for (index, at) in places {
                args.extend([index.into(), number(at.as_micros())]);
            }
            for (name, value) in fields(record) {
                args.extend([name.into(), value]);
            }
        }
        let keys = vec![self.record_key(bucket, &member), self.client.writers(bucket)];
        let (name, mut answer) = self.call_counted(bucket, Script::Change, keys, args).await?;
        match &*answer.bytes()? {
            b"applied" => {
                self.client.tally(bucket).acknowledge(name, answer.natural()?);
                let forgotten: Vec<Bytes> =
                    answer.parts()?.map(super::value::bytes).collect::<Result<_, _>>()?;
                self.drop_notes(id, &forgotten).await;
                Ok(Changed::Applied)
            }
            b"conflict" => read_seen(id, &mut answer).map(Changed::Conflict),
            _ => Err(unreadable()),
        }
    }

    /// A call that says what was acknowledged to this process, and what the server was known to have
    /// evicted. If that is not there any more, or if it has evicted more, it is made all the same, under
    /// another name: its grant is then not believed before a beat, which finds what is missing.
    pub(super) async fn call_counted(
        &self,
        bucket: u16,
        script: Script,
        keys: Vec<Vec<u8>>,
        args: Vec<Vec<u8>>,
    ) -> Result<(Name, Parts), StoreError> {
        let call = Call { script, keys, args };
        let mut why = "the server keeps losing what it acknowledged";
        for _ in 0..LOSSES_MAX {
            let (name, mut answer) = self.client.call_counted(bucket, &call).await?;
            if answer.is_word(b"lost") {
                self.client.has_lost(bucket, name);
            } else if answer.is_word(b"evicted") {
                answer.bytes()?;
                self.client.has_evicted(bucket, name, answer.natural()?);
                why = "the server keeps evicting keys";
            } else {
                return Ok((name, answer));
            }
        }
        Err(unavailable(why))
    }
}

enum Created {
    Now(Timestamp),
    Found(Seen),
}

/// What is looked at.
#[derive(Clone, Copy)]
pub(super) enum Look<'a> {
    Record,
    /// And whether the step of this name is saved.
    Step(&'a str),
}

pub(super) fn read_seen(id: &RecordId, answer: &mut Parts) -> Result<Seen, StoreError> {
    let now = answer.time()?;
    let found = answer.pairs()?;
    let record = match found.is_empty() {
        true => None,
        false => {
            let record = read_record(id.clone(), &found).ok_or_else(|| damaged("its fields"))?;
            Some(Box::new(record))
        }
    };
    Ok(Seen { record, stamp: stamp(&found), now, saved: false })
}

/// No two writes have the same, so that a repeated one knows itself again.
fn new_stamp() -> Vec<u8> {
    rand::random::<[u8; 12]>().to_vec()
}
