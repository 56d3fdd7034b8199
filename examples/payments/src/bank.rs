//! Calls to the bank, and what is known after each.

use std::time::Duration;

use onceward::{Effect, EffectError};
use reqwest::{Client, StatusCode, header::CONTENT_TYPE};
use serde::{Deserialize, Serialize};

use crate::{failed::Failed, tables::Payment};

/// How long the bank may take.
const PATIENCE: Duration = Duration::from_secs(5);

/// The bank.
#[derive(Clone, Debug)]
pub(crate) struct Bank {
    client: Client,
    url: String,
    is_forgetful: bool,
}

/// What the bank said for good. Saved as the result of the step.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Verdict {
    Done { id: String },
    Declined,
}

#[derive(Serialize)]
struct Instruction<'a> {
    payment: &'a str,
    reference: &'a str,
    amount: i64,
}

#[derive(Deserialize)]
struct Receipt {
    id: String,
}

impl Bank {
    pub(crate) fn new(url: &str, is_forgetful: bool) -> reqwest::Result<Self> {
        let client = Client::builder()
            .timeout(PATIENCE)
            .connect_timeout(PATIENCE)
            .no_proxy()
            .retry(reqwest::retry::never())
            // A kept connection may be closed just as it is used, which looks as if the call had
            // been made.
            .pool_max_idle_per_host(if is_forgetful { 0 } else { 8 })
            .build()?;
        Ok(Bank { client, url: url.trim_end_matches('/').to_owned(), is_forgetful })
    }

    /// What a call to this bank promises.
    pub(crate) fn effect<'a>(&self, name: &'a str) -> Effect<'a> {
        match self.is_forgetful {
            false => Effect::idempotent(name),
            true => Effect::not_idempotent(name),
        }
    }

    /// Makes one call. Any error is ambiguous, unless it is known that nothing was sent.
    pub(crate) async fn call(
        &self,
        path: &str,
        key: &str,
        payment: &Payment,
    ) -> Result<Verdict, EffectError<Failed>> {
        let failed = |why: String| Failed::Bank(why);
        let instruction = Instruction {
            payment: &payment.id,
            reference: &payment.reference,
            amount: payment.amount,
        };
        let body = serde_json::to_vec(&instruction)
            .map_err(|error| EffectError::NotExecuted(error.into()))?;
        let call = self.client.post(format!("{}{path}", self.url));
        let call = call.header("idempotency-key", key).header(CONTENT_TYPE, "application/json");
        let answer = match call.body(body).send().await {
            Ok(answer) => answer,
            Err(error) if error.is_connect() => {
                return Err(EffectError::NotExecuted(failed(error.to_string())));
            }
            Err(error) => return Err(failed(error.to_string()).into()),
        };
        match answer.status() {
            StatusCode::OK | StatusCode::CREATED => {
                let body = answer.bytes().await.map_err(|error| failed(error.to_string()))?;
                let receipt: Receipt = serde_json::from_slice(&body).map_err(Failed::from)?;
                Ok(Verdict::Done { id: receipt.id })
            }
            StatusCode::PAYMENT_REQUIRED => Ok(Verdict::Declined),
            status => Err(failed(status.to_string()).into()),
        }
    }
}
