//! Paths, made comparable: one form for the spellings that services commonly take for the same.
//! Only for finding a route. What is sent on, stored and fingerprinted is the path as it came.

use std::borrow::Cow;

/// Without needless escapes, empty segments, `.` and `..`, and without a slash at the end. What is
/// escaped for a reason (`%2F`) stays escaped.
pub(super) fn comparable(path: &str) -> Cow<'_, str> {
    if is_plain(path) {
        return Cow::Borrowed(path);
    }
    let mut segments: Vec<String> = Vec::new();
    for segment in path.split('/').map(unescaped) {
        match &*segment {
            "" | "." => {}
            ".." => {
                segments.pop();
            }
            _ => segments.push(segment.into_owned()),
        }
    }
    Cow::Owned(format!("/{}", segments.join("/")))
}

/// Whether there is one spelling and one reading of a path only, as of most: looked at once.
pub(super) fn is_plain(path: &str) -> bool {
    let mut before = 0;
    let special = path.bytes().any(|byte| {
        let after_slash = std::mem::replace(&mut before, byte) == b'/';
        matches!(byte, b'%' | b';' | b'\\') || (after_slash && matches!(byte, b'/' | b'.'))
    });
    !special && (path.len() == 1 || before != b'/')
}

/// What else a service could take the path for: as it stands, and with matrix parameters, escaped
/// slashes and backslashes read as some frameworks read them. `None` when there is but one reading.
pub(super) fn other_readings(path: &str) -> Option<[String; 2]> {
    let escaped = |code: &str| path.contains(code) || path.contains(&code.to_ascii_lowercase());
    let has_escapes = path.contains('%') && ["%2E", "%2F", "%5C", "%3B"].into_iter().any(escaped);
    let is_plain = !has_escapes && !path.contains([';', '\\']) && !path.contains("/.");
    if is_plain {
        return None;
    }
    let decoded = unescaped(path).replace("%2F", "/").replace("%5C", "/").replace("%3B", ";");
    let segments = decoded.replace('\\', "/");
    let without_parameters: Vec<&str> =
        segments.split('/').map(|segment| segment.split(';').next().unwrap_or_default()).collect();
    let folded = comparable(&without_parameters.join("/")).into_owned();
    Some([path.to_owned(), folded])
}

/// Letters, digits and `-._~` need no escape (RFC 3986, 2.3); other escapes are written one way.
fn unescaped(segment: &str) -> Cow<'_, str> {
    if !segment.contains('%') {
        return Cow::Borrowed(segment);
    }
    let mut parts = segment.split('%');
    let mut plain = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let byte = part.get(..2).and_then(|digits| u8::from_str_radix(digits, 16).ok());
        match (byte, part.get(2..)) {
            (Some(byte), Some(rest)) if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) => {
                plain.push(char::from(byte));
                plain.push_str(rest);
            }
            (Some(byte), Some(rest)) => plain.push_str(&format!("%{byte:02X}{rest}")),
            _ => {
                plain.push('%');
                plain.push_str(part);
            }
        }
    }
    Cow::Owned(plain)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_with_several_readings_has_them_all_and_a_plain_one_has_none() {
        for path in ["/v1/charges", "/v1/charges/", "/caf%C3%A9"] {
            assert_eq!(other_readings(path), None, "{path}");
        }
        for path in [
            "/webhooks/..;/v1/charges",
            "/webhooks/..%2fv1/charges",
            "/webhooks/..%5Cv1/charges",
            "/webhooks/..\\v1/charges",
            "/v1/charges;a=b",
            "/v1%2Fcharges",
        ] {
            let [raw, folded] = other_readings(path).expect(path);
            assert_eq!((&*raw, &*folded), (path, "/v1/charges"));
        }
    }

    #[test]
    fn spellings_of_one_path_are_one() {
        for path in [
            "/v1/charges",
            "/v1/charges/",
            "//v1///charges",
            "/v1/./charges",
            "/v1/x/../charges",
            "/../v1/charges",
            "/v1/ch%61rges",
            "/v1/x/%2e%2E/charges",
            "/%76%31/charges/.",
        ] {
            assert_eq!(comparable(path), "/v1/charges", "{path}");
        }
        assert_eq!(comparable("/"), "/");
        assert_eq!(comparable("//"), "/");
        assert_eq!(comparable("/.."), "/");
        assert_eq!(comparable("/v1/.well-known"), "/v1/.well-known");
    }

    #[test]
    fn paths_that_differ_stay_different() {
        for (path, expected) in [
            ("/v1%2fcharges", "/v1%2Fcharges"),
            ("/v1/charges%00", "/v1/charges%00"),
            ("/v1/100%", "/v1/100%"),
            ("/v1/%zz", "/v1/%zz"),
            ("/v1/%2", "/v1/%2"),
            ("/V1/charges", "/V1/charges"),
            ("/v1/charges;a", "/v1/charges;a"),
            ("/v1/%C3%A4", "/v1/%C3%A4"),
        ] {
            assert_eq!(comparable(path), expected, "{path}");
        }
    }
}
