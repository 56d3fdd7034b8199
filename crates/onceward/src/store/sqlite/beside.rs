//! What is kept beside a record, in the file: gone, by triggers, in the transaction that brings the
//! record to rest.

use bytes::Bytes;
use http::{Method, Uri};
use sqlx::{Row as _, SqliteConnection, sqlite::SqliteRow};

use super::super::{
    beside::{Beside, Gathered},
    headers::{decode_headers, encode_headers},
};
use super::{
    row::{BadRow, Columns, RECORD_COLUMN_COUNT, bind_id, read_record, readable},
    sql::{FORGET, KEEP_REQUEST, RESUMABLE, SAVE_STEP, SAVED, STEPS},
    writer::{Outcome, Writer, before},
};
use crate::{
    record::{RecordId, SavedStep, StoredRequest},
    store::{Resumable, Which},
};

/// Which of these steps are saved already, in the transaction that the connection is in.
pub(super) async fn load_beside(
    connection: &mut SqliteConnection,
    asked: &[(RecordId, Box<str>)],
) -> sqlx::Result<Gathered> {
    let names: Vec<[&str; 3]> =
        asked.iter().map(|(id, name)| [id.scope.as_str(), id.key.as_str(), name]).collect();
    let names = serde_json::to_string(&names).unwrap_or_default();
    let mut gathered = Gathered::default();
    for row in sqlx::query(SAVED).bind(names).fetch_all(connection).await? {
        let position = row.try_get::<i64, _>(0).ok().and_then(|at| usize::try_from(at).ok());
        let generation = row.try_get::<i64, _>(1).ok().and_then(|it| u32::try_from(it).ok());
        let asked = position.and_then(|at| asked.get(at));
        if let (Some((id, name)), Some(generation)) = (asked, generation) {
            gathered.saved.insert((id.clone(), generation, name.clone()));
        }
    }
    Ok(gathered)
}

/// Writes it. No trigger sees a record that came to rest and left it again.
pub(super) async fn write_beside(
    gathered: Gathered,
    connection: &mut SqliteConnection,
) -> sqlx::Result<()> {
    for id in &gathered.left_rest {
        for sql in FORGET {
            bind_id(sqlx::query(sql), id).execute(&mut *connection).await?;
        }
    }
    for (id, kept) in gathered.kept {
        for (generation, beside) in kept {
            let query = match beside {
                Beside::Step(step) => bind_id(sqlx::query(SAVE_STEP), &id)
                    .bind(i64::from(generation))
                    .bind(step.name.into_string())
                    .bind(step.result.to_vec()),
                Beside::Request(request) => bind_id(sqlx::query(KEEP_REQUEST), &id)
                    .bind(request.method.as_str().to_owned())
                    .bind(request.uri.to_string())
                    .bind(encode_headers(&request.headers))
                    .bind(request.body.to_vec()),
            };
            query.execute(&mut *connection).await?;
        }
    }
    Ok(())
}

impl Writer {
    /// Which of the steps that are to be made are saved already. Inside the transaction.
    pub(super) async fn load_saved(
        &mut self,
        asked: Vec<(RecordId, Box<str>)>,
    ) -> Outcome<Gathered> {
        if asked.is_empty() {
            return Ok(Gathered::default());
        }
        let fetched = match self.connection().await {
            Ok(connection) => load_beside(connection, &asked).await,
            Err(failure) => Err(failure.error),
        };
        match fetched {
            Ok(gathered) => Ok(gathered),
            Err(error) => Err(self.roll_back(before(error)).await),
        }
    }

    pub(super) async fn saved_steps(
        &mut self,
        id: &RecordId,
        generation: u32,
    ) -> Outcome<Vec<SavedStep>> {
        let query = bind_id(sqlx::query(STEPS), id).bind(i64::from(generation));
        let rows = query.fetch_all(self.connection().await?).await.map_err(before)?;
        let decode = |error| before(sqlx::Error::Decode(Box::new(error)));
        rows.iter().map(|row| read_step(row).map_err(decode)).collect()
    }

    /// What cannot be read is left out, as workers do: it must not stand in the way of the others.
    pub(super) async fn resumable(&mut self, which: Which, limit: u32) -> Outcome<Vec<Resumable>> {
        let now = self.options.clock.now();
        let mut resumable = Vec::new();
        let mut unreadable = 0;
        loop {
            let found = u32::try_from(resumable.len()).unwrap_or(u32::MAX);
            let page = limit.saturating_sub(found).min(PAGE_MAX);
            let query = sqlx::query(RESUMABLE).bind(now.as_micros());
            let query = query.bind(page).bind(found.saturating_add(unreadable));
            let query = query.bind(which == Which::All);
            let rows = query.fetch_all(self.connection().await?).await.map_err(before)?;
            let read = resumable.len();
            resumable.extend(readable(&rows, read_resumable));
            unreadable += (rows.len() - (resumable.len() - read)) as u32;
            if rows.len() < page as usize || resumable.len() >= limit as usize {
                return Ok(resumable);
            }
        }
    }
}

/// How many are read at a time.
const PAGE_MAX: u32 = 256;

fn read_step(row: &SqliteRow) -> Result<SavedStep, BadRow> {
    let mut columns = Columns { row, next: 0 };
    let name = columns.text("name")?.into();
    let result = columns.blob("result")?;
    Ok(SavedStep { name, result: Bytes::copy_from_slice(result) })
}

fn read_resumable(row: &SqliteRow) -> Result<Resumable, BadRow> {
    let record = Box::new(read_record(row)?);
    let mut columns = Columns { row, next: RECORD_COLUMN_COUNT };
    let method = columns.text_or_null("method")?;
    let uri = columns.text_or_null("uri")?;
    let headers = columns.blob_or_null("headers")?;
    let body = columns.blob_or_null("body")?;
    let request = match (method, uri, headers, body) {
        (None, None, None, None) => None,
        (Some(method), Some(uri), Some(headers), Some(body)) => Some(StoredRequest {
            method: Method::from_bytes(method.as_bytes()).map_err(|_| BadRow("method"))?,
            uri: uri.parse::<Uri>().map_err(|_| BadRow("uri"))?,
            headers: decode_headers(headers).ok_or(BadRow("headers"))?,
            body: Bytes::copy_from_slice(body),
        }),
        _ => return Err(BadRow("request")),
    };
    Ok(Resumable { record, request })
}
