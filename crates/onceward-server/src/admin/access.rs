//! Who may use the admin API: a token, and no page of a foreign site in an operator's browser.

use std::{fmt, net::IpAddr, sync::Arc};

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use http::{HeaderMap, HeaderName, StatusCode, header, request::Parts};
use sha2::{Digest as _, Sha256};

use super::api::Problem;

const SEC_FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");

/// The name under which changes are audited that were made with a token from the environment.
const FROM_ENVIRONMENT: &str = "operator";

/// The same of a token that was made at the start.
const GENERATED: &str = "generated";

/// Whoever knows one of these may do everything.
#[derive(Clone)]
pub(crate) struct Access {
    tokens: Arc<[Token]>,
    hosts: Arc<[Box<str>]>,
}

struct Token {
    name: Box<str>,
    digest: [u8; 32],
}

impl fmt::Debug for Access {
    /// Without the tokens.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.tokens.iter().map(|token| &token.name)).finish()
    }
}

/// Who made a request, for the audit records.
#[derive(Clone, Debug)]
pub(crate) struct Who(pub(crate) Box<str>);

impl Access {
    /// These tokens, by name; without any, one is made, and is returned too.
    pub(crate) fn new(
        tokens: &[(Box<str>, Box<str>)],
        from_environment: Option<&str>,
        hosts: &[Box<str>],
    ) -> (Access, Option<String>) {
        let named = |name: &str, secret: &str| Token { name: name.into(), digest: digest(secret) };
        let mut known: Vec<Token> =
            tokens.iter().map(|(name, secret)| named(name, secret)).collect();
        known.extend(from_environment.map(|secret| named(FROM_ENVIRONMENT, secret)));
        let mut made = None;
        if known.is_empty() {
            let secret = URL_SAFE_NO_PAD.encode(rand::random::<[u8; 32]>());
            known.push(named(GENERATED, &secret));
            made = Some(secret);
        }
        (Access { tokens: known.into(), hosts: hosts.into() }, made)
    }

    /// Who asks, if it may.
    pub(crate) fn check(&self, parts: &Parts) -> Result<Who, Problem> {
        self.check_site(parts)?;
        let credential = parts.headers.get(header::AUTHORIZATION);
        let credential = credential.and_then(|value| value.to_str().ok());
        let token = credential.and_then(|value| {
            let (scheme, token) = value.split_once(' ')?;
            scheme.eq_ignore_ascii_case("bearer").then(|| token.trim())
        });
        let token = token.ok_or_else(Problem::no_token)?;
        let given = digest(token);
        // All are compared, each of them whole: how long it takes tells nothing.
        let mut found = None;
        for known in self.tokens.iter() {
            let differing = known.digest.iter().zip(given).fold(0, |sum, (a, b)| sum | (a ^ b));
            if differing == 0 {
                found = Some(Who(known.name.clone()));
            }
        }
        found.ok_or_else(Problem::no_token)
    }

    /// What needs no token is not for pages of other sites either. A probe may name no host at all,
    /// as many do by HTTP/1.0; a browser always does.
    pub(crate) fn check_probe(&self, parts: &Parts) -> Result<(), Problem> {
        let names_none =
            parts.uri.authority().is_none() && !parts.headers.contains_key(header::HOST);
        if names_none { Ok(()) } else { self.check_site(parts) }
    }

    /// A page in a browser may make a name of its own mean our address, and then asks in that name.
    fn check_site(&self, parts: &Parts) -> Result<(), Problem> {
        let host = host(parts).ok_or_else(|| Problem::foreign("the request names no host"))?;
        if !self.is_ours(host) {
            return Err(Problem::foreign(
                "this name is not one of the admin listener's: use its address, or add the name to \
                 admin.hosts",
            ));
        }
        let cross_site = text(&parts.headers, &SEC_FETCH_SITE)
            .is_some_and(|site| !matches!(site, "same-origin" | "none"));
        let foreign_origin = match parts.headers.get(header::ORIGIN) {
            None => false,
            Some(origin) => {
                let origin = origin.to_str().ok().and_then(|origin| origin.split_once("://"));
                origin.is_none_or(|(_, origin)| !origin.eq_ignore_ascii_case(host))
            }
        };
        if cross_site || foreign_origin {
            return Err(Problem::foreign("the request comes from a page of another site"));
        }
        Ok(())
    }

    fn is_ours(&self, host: &str) -> bool {
        let name = without_port(host);
        let address = name.strip_prefix('[').and_then(|name| name.strip_suffix(']'));
        address.unwrap_or(name).parse::<IpAddr>().is_ok()
            || name.eq_ignore_ascii_case("localhost")
            || self.hosts.iter().any(|known| known.eq_ignore_ascii_case(name))
    }
}

/// The host that a request is for: of its address in HTTP/2, else its one header.
fn host(parts: &Parts) -> Option<&str> {
    if let Some(authority) = parts.uri.authority() {
        return Some(authority.as_str());
    }
    let mut hosts = parts.headers.get_all(header::HOST).iter();
    let host = hosts.next()?.to_str().ok()?;
    hosts.next().is_none().then_some(host)
}

fn without_port(host: &str) -> &str {
    match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => name,
        _ => host,
    }
}

fn text<'h>(headers: &'h HeaderMap, name: &HeaderName) -> Option<&'h str> {
    headers.get(name).map(|value| value.to_str().unwrap_or("?"))
}

fn digest(secret: &str) -> [u8; 32] {
    Sha256::digest(secret.as_bytes()).into()
}

impl Problem {
    fn no_token() -> Problem {
        let detail = "Send Authorization: Bearer TOKEN, with the token that the server was started \
                      with (ONCEWARD_ADMIN_TOKEN) or that it printed at its start.";
        Problem::new(StatusCode::UNAUTHORIZED, "unauthorized", detail)
    }

    fn foreign(detail: &str) -> Problem {
        Problem::new(StatusCode::FORBIDDEN, "foreign_site", detail)
    }
}

#[cfg(test)]
mod tests {
    use http::Request;

    use super::*;

    fn access(hosts: &[&str]) -> Access {
        let hosts: Vec<Box<str>> = hosts.iter().map(|host| (*host).into()).collect();
        let tokens = [("alice".into(), "token-of-alice".into())];
        Access::new(&tokens, Some("token-of-env"), &hosts).0
    }

    fn asked(access: &Access, headers: &[(&str, &str)]) -> Result<String, u16> {
        let request = headers.iter().fold(Request::get("/api/v1/keys"), |request, header| {
            request.header(header.0, header.1)
        });
        let (parts, ()) = request.body(()).expect("a request").into_parts();
        let checked = access.check(&parts);
        checked.map(|who| who.0.into()).map_err(|problem| problem.status.as_u16())
    }

    const HOST: (&str, &str) = ("host", "127.0.0.1:8081");
    const ALICE: (&str, &str) = ("authorization", "Bearer token-of-alice");

    #[test]
    fn a_token_has_a_name_and_no_other_text_is_one() {
        let access = access(&[]);
        assert_eq!(asked(&access, &[HOST, ALICE]).as_deref(), Ok("alice"));
        let of_env = ("authorization", "bearer token-of-env");
        assert_eq!(asked(&access, &[HOST, of_env]).as_deref(), Ok("operator"));
        for wrong in ["", "Bearer", "Bearer ", "Bearer token", "Basic token-of-alice"] {
            assert_eq!(asked(&access, &[HOST, ("authorization", wrong)]), Err(401), "{wrong}");
        }
        assert_eq!(asked(&access, &[HOST]), Err(401));
        assert!(!format!("{access:?}").contains("token"));
    }

    #[test]
    fn without_a_token_one_is_made_that_nobody_can_guess() {
        let (first, made) = Access::new(&[], None, &[]);
        let made = made.expect("made");
        assert!(made.len() >= 43);
        let bearer = format!("Bearer {made}");
        let with_it = [HOST, ("authorization", &bearer)];
        assert_eq!(asked(&first, &with_it).as_deref(), Ok("generated"));
        let (second, _) = Access::new(&[], None, &[]);
        assert_eq!(asked(&second, &with_it), Err(401));
    }

    #[test]
    fn a_name_that_is_not_ours_is_refused_even_with_the_token() {
        let access = access(&["admin.example.com"]);
        for ours in ["127.0.0.1", "[::1]:8081", "localhost:1", "10.0.0.7:80", "Admin.example.com"] {
            assert_eq!(asked(&access, &[("host", ours), ALICE]).as_deref(), Ok("alice"), "{ours}");
        }
        for foreign in ["evil.example:8081", "localhost.evil.example", "", "127.0.0.1.nip.io"] {
            assert_eq!(asked(&access, &[("host", foreign), ALICE]), Err(403), "{foreign}");
        }
        assert_eq!(asked(&access, &[ALICE]), Err(403));
        assert_eq!(asked(&access, &[HOST, HOST, ALICE]), Err(403));
    }

    #[test]
    fn a_page_of_another_site_is_refused_even_with_the_token() {
        let access = access(&[]);
        let own = ("origin", "http://127.0.0.1:8081");
        assert_eq!(asked(&access, &[HOST, own, ALICE]).as_deref(), Ok("alice"));
        for foreign in ["http://evil.example", "http://127.0.0.1:9", "null"] {
            assert_eq!(asked(&access, &[HOST, ("origin", foreign), ALICE]), Err(403), "{foreign}");
        }
        assert_eq!(asked(&access, &[HOST, ("sec-fetch-site", "cross-site"), ALICE]), Err(403));
        assert!(asked(&access, &[HOST, ("sec-fetch-site", "same-origin"), ALICE]).is_ok());
    }
}
