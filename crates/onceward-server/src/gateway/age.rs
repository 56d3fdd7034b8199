//! How old a request may be: by a header that tells when it was made, or by its key.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use http::{HeaderMap, HeaderName};
use onceward::{Key, Rejection, clock::Timestamp, rejection::Code};

/// A request that comes from further ahead would stay young for as long as it likes.
const AHEAD_MAX: Duration = Duration::from_secs(300);

/// The oldest request that is taken.
#[derive(Clone, Debug)]
pub(crate) struct MaxAge {
    pub(crate) at_most: Duration,
    /// None where the key tells, as a UUIDv7 does.
    pub(crate) header: Option<HeaderName>,
}

impl MaxAge {
    /// Refuses a request that is too old, or whose age cannot be told.
    pub(super) fn check(
        &self,
        headers: &HeaderMap,
        key: &Key,
        now: SystemTime,
    ) -> Result<(), Rejection> {
        let made_at = match &self.header {
            Some(name) => by_header(headers, name).ok_or_else(|| {
                refused(format!(
                    "Send the header {name} once, with the time at which the request was made, as \
                     an HTTP-date or in seconds since 1970."
                ))
            })?,
            None => key.uuid_v7_time().map(Timestamp::to_system_time).ok_or_else(|| {
                refused("The Idempotency-Key has to be a UUID of version 7.".to_owned())
            })?,
        };
        if made_at > now + AHEAD_MAX {
            return Err(refused("The request comes from the future.".to_owned()));
        }
        match now.duration_since(made_at) {
            Ok(age) if age > self.at_most => {
                let most = self.at_most.as_secs();
                Err(refused(format!("The request may be at most {most} seconds old.")))
            }
            _ => Ok(()),
        }
    }
}

fn refused(detail: String) -> Rejection {
    Rejection::new(Code::RequestTooOld, format!("{detail} It was not executed by this answer."))
}

fn by_header(headers: &HeaderMap, name: &HeaderName) -> Option<SystemTime> {
    let mut lines = headers.get_all(name).iter();
    let (line, None) = (lines.next()?, lines.next()) else { return None };
    let text = line.to_str().ok()?.trim();
    // Twelve digits reach into the year 33658, and not past what a clock can hold.
    let is_number = text.len() <= 12 && text.bytes().all(|byte| byte.is_ascii_digit());
    match is_number {
        true => Some(UNIX_EPOCH + Duration::from_secs(text.parse().ok()?)),
        false => httpdate::parse_http_date(text).ok(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 2022-02-22 19:22:22 UTC, the example of RFC 9562.
    const KEY: &str = "017F22E2-79B0-7CC3-98C4-DC0C0C07398F";
    const MADE_AT: u64 = 1_645_557_742;

    fn check(header: Option<&'static str>, key: &str, value: &[&str], age: i64) -> bool {
        let mut headers = HeaderMap::new();
        for value in value {
            headers.append("x-sent", value.parse().expect("a value"));
        }
        let header = header.map(HeaderName::from_static);
        let max_age = MaxAge { at_most: Duration::from_secs(3600), header };
        let now = MADE_AT.checked_add_signed(age).expect("a time");
        let now = UNIX_EPOCH + Duration::from_secs(now);
        max_age.check(&headers, &Key::new(key).expect("a key"), now).is_ok()
    }

    #[test]
    fn a_key_that_is_a_uuid_of_version_7_tells_its_age() {
        let lower = KEY.to_lowercase();
        for (age, young) in [(0, true), (3600, true), (3601, false), (-299, true), (-301, false)] {
            assert_eq!(check(None, KEY, &[], age), young, "{age}");
            assert_eq!(check(None, &lower, &[], age), young, "{age}");
        }
    }

    #[test]
    fn a_key_of_unknown_age_is_not_taken_for_a_young_one() {
        for key in [
            "order-0000000000000001",
            "017F22E2-79B0-4CC3-98C4-DC0C0C07398F",
            "017F22E2-79B0-7CC3-F8C4-DC0C0C07398F",
            "017F22E279B07CC398C4DC0C0C07398F0000",
            "017F22G2-79B0-7CC3-98C4-DC0C0C07398F",
        ] {
            assert!(!check(None, key, &[], 0), "{key}");
        }
    }

    #[test]
    fn a_header_tells_the_age_once_and_in_a_known_form() {
        let date = ["Tue, 22 Feb 2022 19:22:22 GMT"];
        let seconds = ["1645557742"];
        for value in [&date[..], &seconds] {
            assert!(check(Some("x-sent"), "any-key-0000000001", value, 3600), "{value:?}");
            assert!(!check(Some("x-sent"), "any-key-0000000001", value, 3601), "{value:?}");
        }
        let twice = [seconds[0], seconds[0]];
        for value in [&[][..], &twice, &[""], &["yesterday"], &["-5"], &["9999999999999"]] {
            assert!(!check(Some("x-sent"), KEY, value, 0), "{value:?}");
        }
    }
}
