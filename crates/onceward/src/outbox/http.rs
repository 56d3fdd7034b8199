//! A sink that posts messages to one address.

use std::{
    fmt,
    time::{Duration, SystemTime},
};

use http::{HeaderMap, HeaderName, HeaderValue, header};
use reqwest::{Client, Response, Url, redirect};
use tracing::warn;

use super::{Delivered, Delivery, Sink, SinkFuture};

/// How long it may take to reach the receiver.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// How much of an answer is read to find the provider's id.
const ANSWER_MAX: usize = 1 << 20;
/// A provider's id that is longer than this is none.
const PROVIDER_ID_MAX: usize = 1000;

/// Posts each message to a fixed address, with its key in `Idempotency-Key`. One request for each
/// try: it follows no redirects and repeats nothing.
///
/// | answer | means |
/// | --- | --- |
/// | 2xx | delivered |
/// | no connection; 408, 425, 429; 503 with `Retry-After` | not delivered: tried again |
/// | 409 with `Retry-After` | the receiver is still at it: may have acted |
/// | other 3xx and 4xx | refused: a dead letter |
/// | other 5xx, timeout, reset, an answer that was cut off | may have acted |
///
/// ```
/// use onceward::outbox::HttpSink;
///
/// # fn main() -> Result<(), onceward::outbox::BadSink> {
/// let charges = HttpSink::idempotent("https://api.provider.example/v1/charges")?
///     .header("authorization".parse().expect("a name"), "Bearer sk_123".parse().expect("a value"))
///     .provider_id_from_json("/id");
/// # Ok(())
/// # }
/// ```
pub struct HttpSink {
    client: Client,
    url: Url,
    idempotent: bool,
    headers: HeaderMap,
    timeout: Duration,
    provider_id: ProviderId,
}

/// Where the provider's id is in an answer.
#[derive(Clone, Debug)]
enum ProviderId {
    Nowhere,
    Header(HeaderName),
    Json(Box<str>),
}

/// Why there is no such sink.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BadSink {
    /// The address cannot be posted to.
    #[error("a sink needs an absolute http or https address")]
    Url,
    /// TLS or the like cannot be set up.
    #[error("the HTTP client cannot be made")]
    Client(#[source] Box<dyn std::error::Error + Send + Sync>),
}

impl HttpSink {
    /// A sink whose receiver acts once for each `Idempotency-Key`.
    ///
    /// # Errors
    /// When the address is none, or TLS cannot be set up.
    pub fn idempotent(url: &str) -> Result<Self, BadSink> {
        Self::new(url, true)
    }

    /// A sink whose receiver knows no keys. A delivery that may have acted is a dead letter.
    ///
    /// # Errors
    /// When the address is none, or TLS cannot be set up.
    pub fn not_idempotent(url: &str) -> Result<Self, BadSink> {
        Self::new(url, false)
    }

    fn new(url: &str, idempotent: bool) -> Result<Self, BadSink> {
        let url = Url::parse(url).map_err(|_| BadSink::Url)?;
        if !matches!(url.scheme(), "http" | "https") || !url.has_host() {
            return Err(BadSink::Url);
        }
        let client = Client::builder()
            .redirect(redirect::Policy::none())
            .retry(reqwest::retry::never())
            .no_proxy()
            .connect_timeout(CONNECT_TIMEOUT)
            .user_agent(concat!("onceward/", env!("CARGO_PKG_VERSION")));
        let client = match idempotent {
            true => client,
            // A connection that was kept may be closed just as it is used: that would look as if
            // the request had been sent.
            false => client.pool_max_idle_per_host(0),
        };
        let client = client.build().map_err(|error| BadSink::Client(error.into()))?;
        let timeout = Duration::from_secs(15);
        let headers = HeaderMap::new();
        let provider_id = ProviderId::Nowhere;
        Ok(HttpSink { client, url, idempotent, headers, timeout, provider_id })
    }

    /// The same that sends this header, too. Its value is not shown anywhere.
    #[must_use]
    pub fn header(mut self, name: HeaderName, mut value: HeaderValue) -> Self {
        value.set_sensitive(true);
        self.headers.insert(name, value);
        self
    }

    /// The same with this long for a whole delivery: 15 seconds by default. Keep it below the
    /// relay's own, so that the reason is told.
    #[must_use]
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    /// The same that takes the provider's id from this header of the answer.
    #[must_use]
    pub fn provider_id_from_header(mut self, name: HeaderName) -> Self {
        self.provider_id = ProviderId::Header(name);
        self
    }

    /// The same that takes the provider's id from the JSON answer, by a pointer such as `/id`.
    #[must_use]
    pub fn provider_id_from_json(mut self, pointer: impl Into<Box<str>>) -> Self {
        self.provider_id = ProviderId::Json(pointer.into());
        self
    }

    async fn post(&self, delivery: Delivery) -> Delivered {
        let header = |text: &str| HeaderValue::from_str(text).ok();
        let key = header(&delivery.key);
        let content_type = header(&delivery.message.content_type);
        let (Some(key), Some(content_type)) = (key, content_type) else {
            return Delivered::Refused("its key or media type is no header value".to_owned());
        };
        let request = self
            .client
            .post(self.url.clone())
            .timeout(self.timeout)
            .headers(self.headers.clone())
            .header(header::CONTENT_TYPE, content_type)
            .header("idempotency-key", key)
            .body(delivery.message.payload);
        match request.send().await {
            Ok(response) => self.judge(response).await,
            Err(error) if error.is_connect() => {
                Delivered::NotDelivered("no connection to the receiver".to_owned())
            }
            Err(error) if error.is_builder() => {
                Delivered::Refused("the request cannot be made".to_owned())
            }
            Err(error) if error.is_timeout() => {
                Delivered::Ambiguous("no answer in time".to_owned())
            }
            Err(_) => Delivered::Ambiguous("the connection broke".to_owned()),
        }
    }

    async fn judge(&self, response: Response) -> Delivered {
        let status = response.status();
        let why = format!("status {}", status.as_u16());
        let retry_after = retry_after(response.headers(), SystemTime::now());
        match (status.as_u16(), retry_after) {
            (200..=299, _) => self.done(response).await,
            (408 | 425 | 429 | 503, Some(after)) => Delivered::Later { after, why },
            (408 | 425 | 429, None) => Delivered::NotDelivered(why),
            (409, Some(_)) => Delivered::Ambiguous(why),
            (300..=499, _) => Delivered::Refused(why),
            _ => Delivered::Ambiguous(why),
        }
    }

    async fn done(&self, response: Response) -> Delivered {
        let provider_id = match &self.provider_id {
            ProviderId::Nowhere => return Delivered::Done { provider_id: None },
            ProviderId::Header(name) => {
                let value = response.headers().get(name);
                value.and_then(|value| value.to_str().ok()).map(str::to_owned)
            }
            ProviderId::Json(pointer) => match read(response).await {
                Some(body) => at(&body, pointer),
                // Without the whole answer nobody knows what it said.
                None => return Delivered::Ambiguous("the answer was cut off".to_owned()),
            },
        };
        let provider_id = provider_id.filter(|id| (1..=PROVIDER_ID_MAX).contains(&id.len()));
        if provider_id.is_none() {
            warn!(
                host = self.url.host_str(),
                "a message was delivered, its provider's id is missing"
            );
        }
        Delivered::Done { provider_id }
    }
}

/// The body, or `None` if it did not come whole. Of a very long one, the beginning.
async fn read(mut response: Response) -> Option<Vec<u8>> {
    let mut body = Vec::new();
    loop {
        match response.chunk().await {
            Ok(Some(chunk)) if body.len() + chunk.len() <= ANSWER_MAX => body.extend(&chunk),
            Ok(_) => return Some(body),
            Err(_) => return None,
        }
    }
}

fn at(body: &[u8], pointer: &str) -> Option<String> {
    let document: serde_json::Value = serde_json::from_slice(body).ok()?;
    match document.pointer(pointer)? {
        serde_json::Value::String(text) => Some(text.clone()),
        serde_json::Value::Number(number) => Some(number.to_string()),
        _ => None,
    }
}

/// Seconds or a date; a date that has passed means now.
fn retry_after(headers: &HeaderMap, now: SystemTime) -> Option<Duration> {
    let text = headers.get(header::RETRY_AFTER)?.to_str().ok()?.trim();
    if let Ok(seconds) = text.parse() {
        return Some(Duration::from_secs(seconds));
    }
    let date = httpdate::parse_http_date(text).ok()?;
    Some(date.duration_since(now).unwrap_or_default())
}

impl Sink for HttpSink {
    fn is_idempotent(&self) -> bool {
        self.idempotent
    }

    fn deliver(&self, delivery: Delivery) -> SinkFuture<'_> {
        Box::pin(self.post(delivery))
    }
}

/// The host only: paths and headers may hold secrets.
impl fmt::Debug for HttpSink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("HttpSink")
            .field("host", &self.url.host_str())
            .field("idempotent", &self.idempotent)
            .finish_non_exhaustive()
    }
}
