//! Records as they are in the file, as far as this process knows: as it wrote or read them last.
//!
//! SQLite says whether anybody else has committed since (`PRAGMA data_version`: another process, or a
//! transaction of the user's). If nobody has, what is kept here *is* what the file holds, and need not
//! be read again; if somebody has, all of it is forgotten. Nothing depends on it being complete.

use std::{collections::HashMap, mem::take};

use crate::{
    record::{Record, RecordId, State},
    reply::ReplyBody,
};

#[derive(Default)]
pub(super) struct Recent {
    /// When it is full it takes the place of the other one: so those go that nobody came back to.
    young: HashMap<RecordId, Record>,
    young_bytes: usize,
    old: HashMap<RecordId, Record>,
    /// The state of the file that they are of.
    version: Option<i64>,
}

/// How many of them a half holds, and how many bytes of replies.
const COUNT_MAX: usize = 10_000;
const BYTES_MAX: usize = 8 << 20;

impl Recent {
    pub(super) fn get(&self, id: &RecordId) -> Option<&Record> {
        self.young.get(id).or_else(|| self.old.get(id))
    }

    /// What was committed, or read under the version that holds. Attempts that go on are written to
    /// next, and replies are sent again soon if ever; nobody waits for the others.
    pub(super) fn note(&mut self, record: Record) {
        self.forget(&record.id);
        if !matches!(record.state, State::InProgress | State::Completed) {
            return;
        }
        let bytes = bytes_of(&record);
        if bytes > BYTES_MAX {
            return;
        }
        if self.young.len() >= COUNT_MAX || self.young_bytes + bytes > BYTES_MAX {
            self.old = take(&mut self.young);
            self.young_bytes = 0;
        }
        self.young_bytes += bytes;
        self.young.insert(record.id.clone(), record);
    }

    pub(super) fn forget(&mut self, id: &RecordId) {
        self.old.remove(id);
        if let Some(record) = self.young.remove(id) {
            self.young_bytes -= bytes_of(&record);
        }
    }

    /// Whether the file is in the state that they are of.
    pub(super) fn is_of(&self, version: i64) -> bool {
        self.version == Some(version)
    }

    /// Keeps them if they are of this state of the file. `None` is none that is known.
    pub(super) fn keep_if_of(&mut self, version: Option<i64>) {
        if version.is_none() || self.version != version {
            *self = Recent { version, ..Recent::default() };
        }
    }
}

/// Of its reply.
pub(super) fn bytes_of(record: &Record) -> usize {
    let Some(reply) = &record.reply else { return 0 };
    let body = match &reply.body {
        ReplyBody::Stored(body) => body.len(),
        ReplyBody::NotStored => 0,
    };
    let headers = reply.headers.iter();
    body + headers.map(|(name, value)| name.as_str().len() + value.len()).sum::<usize>()
}

#[cfg(test)]
mod tests {
    use http::{HeaderValue, StatusCode, header::ETAG};

    use super::*;
    use crate::{key::Key, machine::tests::record_in, reply::Reply};

    /// A record of this key that was completed with so many bytes, most of them in a header.
    fn completed(key: &str, bytes: usize) -> Record {
        let mut reply = Reply::new(StatusCode::OK, "paid");
        let value = vec![b'x'; bytes - ETAG.as_str().len() - "paid".len()];
        reply.headers.push((ETAG, HeaderValue::from_bytes(&value).expect("a value")));
        let mut record = Record { reply: Some(reply), ..record_in(State::Completed) };
        record.id.key = Key::new(key).expect("a key");
        record
    }

    fn bytes_kept(recent: &Recent) -> usize {
        recent.young.values().chain(recent.old.values()).map(bytes_of).sum()
    }

    #[test]
    fn what_is_kept_stays_within_its_bound_headers_and_all() {
        let mut recent = Recent::default();
        let third = BYTES_MAX / 3;
        for number in 0..20 {
            recent.note(completed(&format!("key-{number}"), third));
            assert!(bytes_kept(&recent) <= 2 * BYTES_MAX, "{}", bytes_kept(&recent));
        }
        let last = completed("key-19", third);
        assert_eq!(recent.get(&last.id), Some(&last), "the latest is kept");
        assert!(recent.get(&completed("key-0", third).id).is_none(), "the first has gone");
        recent.note(completed("large", BYTES_MAX + 1));
        assert!(recent.get(&completed("large", third).id).is_none(), "one that is too large");
        assert_eq!(recent.get(&last.id), Some(&last), "and it takes nobody's place");
        recent.forget(&last.id);
        assert_eq!(recent.young_bytes, recent.young.values().map(bytes_of).sum::<usize>());
    }
}
