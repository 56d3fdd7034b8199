//! What clients ask for, and who asks.

use crate::history::Subject;

use super::http::{self, Message};

/// The tenants. No name is part of another, or of anything that Onceward says.
pub(super) const TENANTS: [&str; 4] = ["tenant-ada", "tenant-bob", "tenant-cyd", "tenant-dee"];

/// One thing to be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Charge {
    pub(super) amount: u32,
    pub(super) order: u32,
}

impl Charge {
    /// In words: equal when and only when the same is asked.
    pub(super) fn asks(self) -> String {
        format!("charge {} for order {}", self.amount, self.order)
    }

    /// As JSON, in one of several ways to write the same.
    fn body(self, form: u8) -> String {
        let Charge { amount, order } = self;
        match form % 3 {
            0 => format!("{{\"amount\":{amount},\"order\":{order}}}"),
            1 => format!("{{ \"order\" : {order},\n  \"amount\" : {amount} }}"),
            _ => format!("{{\"amount\":{amount}.0,\"order\":{order}e0}}"),
        }
    }

    /// The bytes of a request.
    pub(super) fn request(self, subject: &Subject, form: u8) -> Vec<u8> {
        let body = self.body(form);
        let headers = [
            ("Host", "charges.example".to_owned()),
            ("Authorization", format!("Bearer {}", subject.tenant)),
            ("Idempotency-Key", subject.key.clone()),
            ("Content-Type", "application/json".to_owned()),
            ("Content-Length", body.len().to_string()),
        ];
        let headers = headers.map(|(name, value)| (name.to_owned(), value));
        http::bytes("POST /charges HTTP/1.1", &headers, &body)
    }

    /// A request as upstream gets it: who asks, for what.
    pub(super) fn read(request: &Message) -> Option<(Subject, Charge)> {
        let tenant = request.header("authorization")?.strip_prefix("Bearer ")?.to_owned();
        let key = request.header("idempotency-key")?.to_owned();
        let body: serde_json::Value = serde_json::from_str(&request.body).ok()?;
        let number = |name: &str| -> Option<u32> {
            let number = body.get(name)?.as_f64()?;
            // Small whole numbers, which are exact.
            Some(number as u32)
        };
        let charge = Charge { amount: number("amount")?, order: number("order")? };
        Some((Subject { tenant, key }, charge))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_way_to_write_a_charge_is_read_as_the_same() {
        let subject = Subject { tenant: TENANTS[0].to_owned(), key: "key-1".to_owned() };
        let charge = Charge { amount: 17, order: 4 };
        let written: Vec<Vec<u8>> = (0..3).map(|form| charge.request(&subject, form)).collect();
        for bytes in &written {
            let message = Message::read(&mut &**bytes).expect("read").expect("a request");
            assert_eq!(Charge::read(&message), Some((subject.clone(), charge)));
        }
        assert!(written[0] != written[1] && written[1] != written[2]);
        let other = Charge { amount: 18, order: 4 };
        assert_ne!(other.asks(), charge.asks());
    }
}
