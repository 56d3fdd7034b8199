//! What is kept beside a record while it is not terminal: its request and its steps.

use bytes::Bytes;

use super::{
    RedisStore,
    address::member,
    error::damaged,
    look::{Seen, read_seen},
    script::Script,
};
use crate::{
    record::{RecordId, SavedStep},
    store::StoreError,
};

/// The place of a step among the others, in front of its result.
const PLACE_LEN: usize = 8;

impl RedisStore {
    /// A record with all that is beside it.
    pub(super) async fn look_beside(
        &self,
        id: &RecordId,
    ) -> Result<(Seen, Vec<(Bytes, Bytes)>), StoreError> {
        let member = member(id);
        let bucket = self.bucket(&member);
        let keys = vec![self.record_key(bucket, &member)];
        let args = vec![self.client.now(), member, "beside".into()];
        let mut answer = self.client.call(bucket, Script::Look, keys, args).await?;
        let seen = read_seen(id, &mut answer)?;
        Ok((seen, answer.pairs()?))
    }

    pub(super) async fn saved_steps(
        &self,
        id: &RecordId,
        generation: u32,
    ) -> Result<Vec<SavedStep>, StoreError> {
        let (seen, beside) = self.look_beside(id).await?;
        if seen.record.is_none_or(|record| record.generation != generation) {
            return Ok(Vec::new());
        }
        let mut steps = Vec::new();
        for (name, kept) in beside {
            if let Some(name) = name.strip_prefix(b"s") {
                steps.push(read_step(name, &kept).ok_or_else(|| damaged("a step"))?);
            }
        }
        steps.sort_by_key(|(place, _)| *place);
        Ok(steps.into_iter().map(|(_, step)| step).collect())
    }
}

fn read_step(name: &[u8], kept: &Bytes) -> Option<(u32, SavedStep)> {
    let place = std::str::from_utf8(kept.get(..PLACE_LEN)?).ok()?.parse().ok()?;
    let name = std::str::from_utf8(name).ok()?.into();
    Some((place, SavedStep { name, result: kept.slice(PLACE_LEN..) }))
}
