//! What every contestant serves: `POST /payments` with a body of 205 bytes, answered with a
//! payment of its own number. A handler that ran twice would answer differently.

use axum::http::StatusCode;
use serde::{Deserialize, Serialize};

/// What the load sends.
pub(crate) const BODY: &str = "{\"amount\":129950,\"currency\":\"EUR\",\"customer\":\"cus_8f14e45f\",\
    \"capture\":true,\"reference\":\"INV-2026-0042\",\"description\":\"Two cups, made by hand\
    \",\"metadata\":{\"source\":\"web\",\"cart\":\"98231\",\"campaign\":\"autumn\"}}";

#[derive(Deserialize)]
struct Order<'a> {
    amount: u64,
    currency: &'a str,
    customer: &'a str,
    capture: bool,
    reference: &'a str,
    description: &'a str,
}

#[derive(Serialize)]
struct Payment<'a> {
    id: String,
    status: &'static str,
    amount: u64,
    currency: &'a str,
    customer: &'a str,
    reference: &'a str,
    description: &'a str,
    created: u64,
}

/// The work: reads the order, answers with a new payment.
pub(crate) fn pay(body: &[u8]) -> (StatusCode, Vec<u8>) {
    let Ok(order) = serde_json::from_slice::<Order<'_>>(body) else {
        return (StatusCode::BAD_REQUEST, Vec::new());
    };
    let payment = Payment {
        id: format!("pay_{:032x}", rand::random::<u128>()),
        status: if order.capture { "captured" } else { "authorised" },
        amount: order.amount,
        currency: order.currency,
        customer: order.customer,
        reference: order.reference,
        description: order.description,
        created: 1_794_700_800,
    };
    match serde_json::to_vec(&payment) {
        Ok(body) => (StatusCode::CREATED, body),
        Err(_) => (StatusCode::INTERNAL_SERVER_ERROR, Vec::new()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_order_has_205_bytes_and_each_payment_for_it_is_another() {
        assert_eq!(BODY.len(), 205);
        let (status, body) = pay(BODY.as_bytes());
        assert_eq!(status, StatusCode::CREATED);
        assert_ne!(pay(BODY.as_bytes()).1, body);
    }

    #[test]
    fn what_is_no_order_is_not_paid() {
        assert_eq!(pay(b"{}").0, StatusCode::BAD_REQUEST);
    }
}
