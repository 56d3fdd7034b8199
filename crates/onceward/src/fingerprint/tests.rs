//! Pairs of requests that must be equal and, for each rule, pairs that must
//! not.

mod form;
mod head;
mod json;
mod keyed;
mod random;
mod selection;

use http::Request;
use http::request::Parts;

use super::{Fingerprint, Recipe};

const JSON: &str = "application/json";
const FORM: &str = "application/x-www-form-urlencoded";

/// `POST /payments` with these headers.
fn post(headers: &[(&str, &str)]) -> Parts {
    let mut request = Request::post("/payments");
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    let (parts, ()) = request.body(()).expect("a valid request").into_parts();
    parts
}

/// The fingerprint of a body of this media type.
fn of_body(media_type: &str, body: impl AsRef<[u8]>) -> Fingerprint {
    let parts = post(&[("content-type", media_type)]);
    Recipe::canonical().fingerprint(&parts, body.as_ref())
}

#[track_caller]
fn assert_equal(media_type: &str, bodies: &[&str]) {
    let (first, others) = bodies.split_first().expect("bodies to compare");
    for other in others {
        let equal = of_body(media_type, first) == of_body(media_type, other);
        assert!(equal, "{first:?} and {other:?} differ");
    }
}

/// Every body differs from every other.
#[track_caller]
fn assert_distinct(media_type: &str, bodies: &[&str]) {
    for (index, one) in bodies.iter().enumerate() {
        for other in bodies.iter().skip(index + 1) {
            let equal = of_body(media_type, one) == of_body(media_type, other);
            assert!(!equal, "{one:?} and {other:?} are equal");
        }
    }
}
