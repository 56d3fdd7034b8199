//! What a client is told when it did not work.

use axum::{
    Json,
    response::{IntoResponse, Response},
};
use http::StatusCode;
use onceward::{StepError, TransactionError};
use serde_json::json;
use tracing::warn;

/// Why a request did not come to its end.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Failed {
    #[error("there is no such payment")]
    NotFound,
    #[error("the payment is {0}")]
    WrongState(String),
    #[error("an amount must be positive")]
    Amount,
    #[error("there is a customer with this address")]
    CustomerExists,
    #[error("the database failed")]
    Database(#[from] sqlx::Error),
    #[error("the bank did not answer: {0}")]
    Bank(String),
    #[error("a document cannot be written")]
    Json(#[from] serde_json::Error),
    /// This attempt may not go on: its lease is over or lost, or the store failed. Whoever comes next
    /// goes on where it stopped.
    #[error("the operation was interrupted: {0}")]
    Interrupted(String),
}

impl From<TransactionError> for Failed {
    fn from(error: TransactionError) -> Self {
        Failed::Interrupted(error.to_string())
    }
}

impl From<TransactionError<Failed>> for Failed {
    fn from(error: TransactionError<Failed>) -> Self {
        match error {
            TransactionError::Work(failed) => failed,
            other => Failed::Interrupted(other.to_string()),
        }
    }
}

impl From<StepError<Failed>> for Failed {
    fn from(error: StepError<Failed>) -> Self {
        match error {
            StepError::Failed(failed) | StepError::Ambiguous(failed) => failed,
            other => Failed::Interrupted(other.to_string()),
        }
    }
}

impl IntoResponse for Failed {
    fn into_response(self) -> Response {
        let status = match &self {
            Failed::NotFound => StatusCode::NOT_FOUND,
            Failed::WrongState(_) | Failed::CustomerExists => StatusCode::CONFLICT,
            Failed::Amount => StatusCode::BAD_REQUEST,
            Failed::Json(_) => StatusCode::INTERNAL_SERVER_ERROR,
            // Come back with the same key.
            Failed::Database(_) | Failed::Bank(_) | Failed::Interrupted(_) => {
                StatusCode::SERVICE_UNAVAILABLE
            }
        };
        if status.is_server_error() {
            warn!(error = &self as &dyn std::error::Error, "a request failed");
        }
        (status, Json(json!({ "error": self.to_string() }))).into_response()
    }
}
