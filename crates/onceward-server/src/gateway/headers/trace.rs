//! `traceparent` (W3C Trace Context): passed on, and made where there is none, so that what upstream
//! logs can be found again.

use http::{HeaderMap, HeaderName, HeaderValue};

static TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");
static TRACESTATE: HeaderName = HeaderName::from_static("tracestate");

/// Leaves a `traceparent` that can be read, and otherwise begins a trace. Where nothing of a trace was
/// said, nothing is looked for.
pub(super) fn ensure(headers: &mut HeaderMap, said: bool) {
    if said {
        let mut given = headers.get_all(&TRACEPARENT).iter();
        let usable = matches!((given.next(), given.next()), (Some(one), None) if is_valid(one));
        if usable {
            return;
        }
        // A state without its parent means nothing.
        headers.remove(&TRACESTATE);
    }
    if let Ok(begun) = HeaderValue::from_bytes(&begin()) {
        headers.insert(&TRACEPARENT, begun);
    }
}

/// Sampled: services that follow their parent would otherwise record nothing any more.
fn begin() -> [u8; 55] {
    let (trace, parent) = (rand::random::<u128>().max(1), rand::random::<u64>().max(1));
    let mut made = *b"00-00000000000000000000000000000000-0000000000000000-01";
    write_hex(made.get_mut(3..35), &trace.to_be_bytes());
    write_hex(made.get_mut(36..52), &parent.to_be_bytes());
    made
}

fn write_hex(place: Option<&mut [u8]>, bytes: &[u8]) {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let (places, _) = place.unwrap_or_default().as_chunks_mut::<2>();
    for (digits, byte) in places.iter_mut().zip(bytes) {
        *digits = [DIGITS[usize::from(byte >> 4)], DIGITS[usize::from(byte & 15)]];
    }
}

/// Later versions may have more parts at the end.
fn is_valid(value: &HeaderValue) -> bool {
    let Ok(text) = value.to_str() else { return false };
    let mut parts = text.split('-');
    let mut hex = |length: usize| {
        let part = parts.next()?;
        let is_hex = part.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
        (is_hex && part.len() == length).then_some(part)
    };
    let (Some(version), Some(trace), Some(parent), Some(_flags)) =
        (hex(2), hex(32), hex(16), hex(2))
    else {
        return false;
    };
    let named = |part: &str| part.bytes().any(|byte| byte != b'0');
    let nothing_more = parts.next().is_none();
    version != "ff" && named(trace) && named(parent) && (version != "00" || nothing_more)
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIVEN: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-00";

    fn through(given: &[&str]) -> (String, bool) {
        let mut headers = HeaderMap::new();
        for value in given {
            headers.append(&TRACEPARENT, HeaderValue::from_str(value).expect("valid"));
        }
        headers.insert(&TRACESTATE, HeaderValue::from_static("a=1"));
        ensure(&mut headers, true);
        assert_eq!(headers.get_all(&TRACEPARENT).iter().count(), 1);
        let value = headers.get(&TRACEPARENT).expect("there").to_str().expect("text");
        (value.to_owned(), headers.contains_key(&TRACESTATE))
    }

    #[test]
    fn a_trace_that_a_client_began_is_passed_on_with_its_state() {
        assert_eq!(through(&[GIVEN]), (GIVEN.to_owned(), true));
        let later = format!("01{}-more", &GIVEN[2..]);
        assert_eq!(through(&[&later]), (later.clone(), true));
    }

    #[test]
    fn a_trace_is_begun_where_there_is_none_that_can_be_read() {
        let zero = "00-00000000000000000000000000000000-00f067aa0ba902b7-00";
        let cases =
            [&[][..], &["nonsense"], &[GIVEN, GIVEN], &[zero], &[&GIVEN[..54]], &["00-x-y-z"]];
        for given in cases {
            let (made, state) = through(given);
            assert!(is_valid(&HeaderValue::from_str(&made).expect("valid")), "{made}");
            assert!(made != GIVEN && !state, "{given:?}");
        }
        assert_ne!(through(&[]), through(&[]), "each is new");
    }
}
