//! Paths, made comparable: one form for the spellings that services commonly take for the same.
//! Only for finding a route. What is sent on, stored and fingerprinted is the path as it came.

use std::borrow::Cow;

/// Without needless escapes, empty segments, `.` and `..`, and without a slash at the end. What is
/// escaped for a reason (`%2F`) stays escaped.
pub(super) fn comparable(path: &str) -> Cow<'_, str> {
    let plain = !path.contains(['%']) && !path.contains("//") && !path.contains("/.");
    if plain && (path.len() == 1 || !path.ends_with('/')) {
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
