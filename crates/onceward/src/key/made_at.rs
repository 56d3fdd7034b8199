//! Keys that tell when they were made.

use super::Key;
use crate::clock::Timestamp;

impl Key {
    /// The time in a key that is a UUID of version 7 (RFC 9562, 5.7): its first 48 bits, in
    /// milliseconds.
    pub fn uuid_v7_time(&self) -> Option<Timestamp> {
        let key = self.as_str();
        let hyphens = [8, 13, 18, 23];
        let well_formed = key.len() == 36
            && key.bytes().enumerate().all(|(at, byte)| match hyphens.contains(&at) {
                true => byte == b'-',
                false => byte.is_ascii_hexdigit(),
            });
        let version_and_variant = (key.as_bytes().get(14)?, key.as_bytes().get(19)?);
        if !well_formed
            || !matches!(version_and_variant, (b'7', b'8' | b'9' | b'a'..=b'b' | b'A'..=b'B'))
        {
            return None;
        }
        let millis = format!("{}{}", key.get(..8)?, key.get(9..13)?);
        from_millis(u64::from_str_radix(&millis, 16).ok()?)
    }

    /// When the key was made, if it tells: a UUID of version 7, or a ULID.
    pub(crate) fn made_at(&self) -> Option<Timestamp> {
        self.uuid_v7_time().or_else(|| self.ulid_time())
    }

    /// The first ten digits of a ULID, in Crockford's base 32: milliseconds.
    fn ulid_time(&self) -> Option<Timestamp> {
        let digit = |byte: u8| {
            let at = ULID_DIGITS.iter().position(|digit| *digit == byte.to_ascii_uppercase())?;
            u64::try_from(at).ok()
        };
        let digits: Option<Vec<u64>> = self.as_str().bytes().map(digit).collect();
        let digits = digits.filter(|digits| digits.len() == 26 && digits.first() < Some(&8))?;
        from_millis(digits.iter().take(10).fold(0, |millis, digit| millis << 5 | digit))
    }
}

const ULID_DIGITS: &[u8; 32] = b"0123456789ABCDEFGHJKMNPQRSTVWXYZ";

fn from_millis(millis: u64) -> Option<Timestamp> {
    Some(Timestamp::from_micros(i64::try_from(millis).ok()?.checked_mul(1000)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn made_at(key: &str) -> Option<i64> {
        Key::new(key).expect("a key").made_at().map(Timestamp::as_micros)
    }

    #[test]
    fn uuids_of_version_7_and_ulids_tell_when_they_were_made() {
        // The example of RFC 9562, and the same time as a ULID.
        let at = Some(1_645_557_742_000_000);
        assert_eq!(made_at("017F22E2-79B0-7CC3-98C4-DC0C0C07398F"), at);
        assert_eq!(made_at("017f22e2-79b0-7cc3-98c4-dc0c0c07398f"), at);
        assert_eq!(made_at("01FWHE4YDGFK1SHH6W1G60EECF"), at);
        assert_eq!(made_at("01fwhe4ydgfk1shh6w1g60eecf"), at);
    }

    #[test]
    fn other_keys_tell_nothing() {
        for key in [
            "order-0000000000000001",
            "017F22E2-79B0-4CC3-98C4-DC0C0C07398F",
            "017F22E2-79B0-7CC3-F8C4-DC0C0C07398F",
            "81FWHE4YDGFK1SHH6W1G60EECF",
            "01FWHE4YDGFK1SHH6W1G60EEC",
            "01FWHE4YDGFK1SHH6W1G60EECU",
        ] {
            assert_eq!(made_at(key), None, "{key}");
        }
    }
}
