//! A bank to try it with, which is also told about payments. A process of its own with a ledger of its
//! own: what is in there is the truth about what was done.
//!
//! `POST /faults` with `{"lose": 1}` loses the next answer after the bank has acted, `"refuse"` declines
//! so many calls, `"delay_ms"` holds every answer back.

use std::{
    collections::HashMap,
    fs::{File, OpenOptions},
    io::{self, Write as _},
    path::Path as FilePath,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use anyhow::{Context as _, Result};
use axum::{
    Json, Router,
    extract::{Path, State},
    response::{IntoResponse, Response},
    routing::post,
};
use http::{HeaderMap, StatusCode};
use hyper::{server::conn::http1, service::service_fn};
use hyper_util::rt::TokioIo;
use serde::{Deserialize, Serialize};
use serde_json::json;
use tokio::{net::TcpListener, time::sleep};
use tower::ServiceExt as _;

use crate::cli::BankArgs;

/// What the bank did once.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Entry {
    kind: String,
    key: String,
    payment: String,
    reference: String,
    amount: i64,
    id: String,
}

/// What it is asked to do. A notification says what it is about.
#[derive(Debug, Deserialize)]
struct Asked {
    event: Option<String>,
    payment: String,
    reference: String,
    amount: i64,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Faults {
    delay_ms: u64,
    lose: u32,
    refuse: u32,
}

#[derive(Debug)]
struct Books {
    ledger: File,
    entries: usize,
    /// By key, unless the bank is forgetful.
    known: Option<HashMap<String, Entry>>,
    faults: Faults,
}

type Shared = Arc<Mutex<Books>>;

/// Marks an answer that does not arrive.
#[derive(Clone)]
struct Lost;

impl Books {
    fn open(ledger: &FilePath, forgetful: bool) -> Result<Books> {
        let written = match std::fs::read_to_string(ledger) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => String::new(),
            read => read?,
        };
        let entries = written.lines().map(serde_json::from_str::<Entry>);
        let entries: Vec<Entry> = entries.collect::<Result<_, _>>().context("the ledger")?;
        let ledger = OpenOptions::new().create(true).append(true).open(ledger)?;
        let count = entries.len();
        let by_key = entries.into_iter().map(|entry| (entry.key.clone(), entry));
        let known = (!forgetful).then(|| by_key.collect());
        Ok(Books { ledger, entries: count, known, faults: Faults::default() })
    }

    /// Acts, unless it has for this key. Says under which id.
    fn act(&mut self, kind: String, key: &str, asked: Asked) -> io::Result<String> {
        if let Some(entry) = self.known.as_ref().and_then(|known| known.get(key)) {
            return Ok(entry.id.clone());
        }
        let Asked { payment, reference, amount, .. } = asked;
        let id = format!("bank-{}", self.entries + 1);
        let entry = Entry { kind, key: key.to_owned(), payment, reference, amount, id };
        let mut line = serde_json::to_vec(&entry)?;
        line.push(b'\n');
        self.ledger.write_all(&line)?;
        self.ledger.sync_data()?;
        self.entries += 1;
        let id = entry.id.clone();
        if let Some(known) = &mut self.known {
            known.insert(key.to_owned(), entry);
        }
        Ok(id)
    }
}

fn lock(books: &Shared) -> MutexGuard<'_, Books> {
    books.lock().unwrap_or_else(PoisonError::into_inner)
}

/// One more of these, if there is one left.
fn take(left: &mut u32) -> bool {
    let taken = *left > 0;
    *left = left.saturating_sub(1);
    taken
}

async fn act(
    State(books): State<Shared>,
    Path(kind): Path<String>,
    headers: HeaderMap,
    Json(asked): Json<Asked>,
) -> Response {
    let key = headers.get("idempotency-key").and_then(|key| key.to_str().ok());
    let Some(key) = key else { return StatusCode::BAD_REQUEST.into_response() };
    let is_notification = asked.event.is_some();
    let kind = asked.event.clone().unwrap_or(kind);
    let (acted, delay, lost) = {
        let mut books = lock(&books);
        if !is_notification && take(&mut books.faults.refuse) {
            return StatusCode::PAYMENT_REQUIRED.into_response();
        }
        let acted = books.act(kind, key, asked);
        let lost = !is_notification && take(&mut books.faults.lose);
        (acted, Duration::from_millis(books.faults.delay_ms), lost)
    };
    sleep(delay).await;
    let Ok(id) = acted else { return StatusCode::INTERNAL_SERVER_ERROR.into_response() };
    let mut response = Json(json!({ "id": id })).into_response();
    if lost {
        response.extensions_mut().insert(Lost);
    }
    response
}

async fn set_faults(State(books): State<Shared>, Json(faults): Json<Faults>) -> StatusCode {
    lock(&books).faults = faults;
    StatusCode::NO_CONTENT
}

/// Serves until it is killed, on hyper itself: a handler of axum cannot lose its answer.
pub(crate) async fn serve(args: BankArgs) -> Result<()> {
    let books = Books::open(&args.ledger, args.forgetful)?;
    let router = Router::new()
        .route("/faults", post(set_faults))
        .route("/{kind}", post(act))
        .with_state(Arc::new(Mutex::new(books)));
    let listener = TcpListener::bind(args.listen).await.context("the listener")?;
    println!("listening on http://{}", listener.local_addr()?);
    loop {
        let (stream, _) = listener.accept().await?;
        let router = router.clone();
        let answer = service_fn(move |request| {
            let router = router.clone();
            async move {
                let response = router.oneshot(request).await.map_err(io::Error::other)?;
                match response.extensions().get::<Lost>() {
                    Some(Lost) => Err(io::Error::other("lost on purpose")),
                    None => Ok(response),
                }
            }
        });
        tokio::spawn(http1::Builder::new().serve_connection(TokioIo::new(stream), answer));
    }
}
