//! Heads that are too large, or that two readers could understand differently, are refused before
//! anybody reads them.

use http::{
    HeaderName, HeaderValue, Method, Request, StatusCode, Version,
    header::{CONTENT_LENGTH, HOST},
};

use crate::config::Limits;

/// The status with which a head is refused. hyper counts the headers of HTTP/1 only.
pub(super) fn refusal<B>(request: &Request<B>, limits: &Limits) -> Option<StatusCode> {
    if request.headers().len() > limits.headers_max {
        Some(StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE)
    } else if !is_clear(request) || is_misspelt(request.method()) {
        Some(StatusCode::BAD_REQUEST)
    } else {
        None
    }
}

/// Whether it differs from a method of HTTP in case only. Such a one is another method, and some
/// services take it for the same: what looks unprotected here would run there.
fn is_misspelt(method: &Method) -> bool {
    let known = ["GET", "HEAD", "POST", "PUT", "DELETE", "OPTIONS", "PATCH", "TRACE", "CONNECT"];
    let spelt = method.as_str();
    known.iter().any(|name| name.eq_ignore_ascii_case(spelt) && *name != spelt)
}

/// Whether it is clear which host is meant (RFC 9112, 3.2; RFC 9113, 8.3.1): one `Host` line, none
/// before HTTP/1.1, and in HTTP/2 the same as in the address, without a user in any of them. And how
/// long the body is: HTTP/2 may say it twice alike, and each would be a line of its own for upstream.
fn is_clear<B>(request: &Request<B>) -> bool {
    let has_more_than_one =
        |name: HeaderName| request.headers().get_all(name).iter().nth(1).is_some();
    if has_more_than_one(HOST) || has_more_than_one(CONTENT_LENGTH) {
        return false;
    }
    let length = request.headers().get(CONTENT_LENGTH).map(HeaderValue::as_bytes);
    if length.is_some_and(|length| length.is_empty() || !length.iter().all(u8::is_ascii_digit)) {
        return false;
    }
    let host = request.headers().get(HOST).map(HeaderValue::as_bytes);
    let named = request.uri().authority().map(|authority| authority.as_str().as_bytes());
    if [host, named].into_iter().flatten().any(|host| host.contains(&b'@')) {
        return false;
    }
    match (request.version(), host) {
        (Version::HTTP_09 | Version::HTTP_10, _) => true,
        (Version::HTTP_11, host) => host.is_some(),
        (_, None) => named.is_some(),
        (_, Some(host)) => named.is_none_or(|named| named.eq_ignore_ascii_case(host)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn clear(version: Version, uri: &str, hosts: &[&str]) -> bool {
        let mut request = Request::get(uri).version(version);
        for host in hosts {
            request = request.header(HOST, *host);
        }
        is_clear(&request.body(()).expect("valid"))
    }

    #[test]
    fn one_host_is_clear_and_two_or_none_are_not() {
        assert!(clear(Version::HTTP_11, "/", &["shop"]));
        assert!(!clear(Version::HTTP_11, "/", &["shop", "shop"]));
        assert!(!clear(Version::HTTP_11, "/", &[]));
        assert!(clear(Version::HTTP_10, "/", &[]));
        assert!(!clear(Version::HTTP_10, "/", &["shop", "evil"]));
    }

    #[test]
    fn a_host_has_no_user() {
        for (uri, host) in [("http://evil@shop/", "shop"), ("/", "evil@shop"), ("/", "a:b@shop")] {
            assert!(!clear(Version::HTTP_11, uri, &[host]), "{uri} {host}");
        }
        assert!(!clear(Version::HTTP_2, "https://evil@shop/", &[]));
        assert!(clear(Version::HTTP_11, "/a@b", &["shop"]));
    }

    #[test]
    fn a_length_is_said_once_and_in_digits() {
        let with = |lengths: &[&str]| {
            let mut request = Request::post("/").header(HOST, "shop");
            for length in lengths {
                request = request.header(CONTENT_LENGTH, *length);
            }
            is_clear(&request.body(()).expect("valid"))
        };
        assert!(with(&[]) && with(&["2"]));
        assert!(!with(&["2", "2"]) && !with(&["2", "9"]));
        for length in ["", " ", "+2", "-2", "2,2", "2 2", "0x2"] {
            assert!(!with(&[length]), "{length:?}");
        }
    }

    #[test]
    fn a_method_in_other_letters_is_refused_and_one_of_its_own_is_not() {
        let refused = |method: &str| {
            let request = Request::builder().method(method).uri("/").header(HOST, "shop");
            refusal(&request.body(()).expect("valid"), &Limits::default())
        };
        for method in ["post", "Post", "patch", "get"] {
            assert_eq!(refused(method), Some(StatusCode::BAD_REQUEST), "{method}");
        }
        for method in ["POST", "PATCH", "GET", "PURGE", "propfind"] {
            assert_eq!(refused(method), None, "{method}");
        }
    }

    #[test]
    fn as_many_headers_as_the_limit_are_taken_and_one_more_is_not() {
        let limits = Limits::default();
        let with = |count: usize| {
            let mut request = Request::get("/").header(HOST, "shop");
            for _ in 1..count {
                request = request.header("x", "1");
            }
            refusal(&request.body(()).expect("valid"), &limits)
        };
        assert_eq!(with(limits.headers_max), None);
        let too_large = StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE;
        assert_eq!(with(limits.headers_max + 1), Some(too_large));
    }

    #[test]
    fn in_http_2_the_address_and_the_host_say_the_same() {
        assert!(clear(Version::HTTP_2, "https://shop/", &[]));
        assert!(clear(Version::HTTP_2, "https://shop/", &["Shop"]));
        assert!(!clear(Version::HTTP_2, "https://shop/", &["evil"]));
        assert!(!clear(Version::HTTP_2, "/", &[]));
    }
}
