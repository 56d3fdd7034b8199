//! The name of a record for programs that are not its client: services that complete it by SQL, and
//! operators.

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};

use super::RecordId;
use crate::{key::Key, scope::Scope};

impl RecordId {
    /// Its handle: `v1.SCOPE.KEY`, both parts in base64 for URLs.
    pub fn handle(&self) -> String {
        let (scope, key) = (self.scope.as_str(), self.key.as_str());
        let mut handle = String::with_capacity(8 + (scope.len() + key.len()) * 4 / 3);
        handle.push_str("v1.");
        URL_SAFE_NO_PAD.encode_string(scope, &mut handle);
        handle.push('.');
        URL_SAFE_NO_PAD.encode_string(key, &mut handle);
        handle
    }

    /// The record of a handle; `None` if it is not one.
    pub fn from_handle(handle: &str) -> Option<RecordId> {
        let (scope, key) = handle.strip_prefix("v1.")?.split_once('.')?;
        Some(RecordId {
            scope: Scope::new(decode(scope)?).ok()?,
            key: Key::new(decode(key)?).ok()?,
        })
    }
}

pub(crate) fn encode(text: &str) -> String {
    URL_SAFE_NO_PAD.encode(text)
}

pub(crate) fn decode(text: &str) -> Option<String> {
    String::from_utf8(URL_SAFE_NO_PAD.decode(text).ok()?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_handle_names_its_record_and_nothing_else() {
        let id = RecordId {
            scope: Scope::new("tenant: \u{e4}/1").expect("scope"),
            key: Key::new("order.0000/0001").expect("key"),
        };
        assert_eq!(RecordId::from_handle(&id.handle()), Some(id.clone()));
        let swapped = id.handle().split('.').rev().collect::<Vec<_>>().join(".");
        for damaged in ["", "v1.", "v1..", "v1.YQ", "v2.YQ.Yg", "v1.YQ.Yg.Yw", "v1.YQ.*", &swapped]
        {
            assert_eq!(RecordId::from_handle(damaged), None, "{damaged}");
        }
    }
}
