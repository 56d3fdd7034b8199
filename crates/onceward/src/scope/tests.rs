use http::{HeaderName, Request};

use super::*;

fn request(headers: &[(&str, &str)]) -> Parts {
    let mut request = Request::builder().uri("/");
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    request.body(()).expect("a request").into_parts().0
}

fn authorization(value: &str) -> Result<Scope, NoScope> {
    ScopeRule::authorization().read(&request(&[("authorization", value)]))
}

#[test]
fn one_credential_is_one_scope_and_another_is_another() {
    let first = authorization("Bearer sk_live_123").expect("a scope");
    assert_eq!(authorization("Bearer sk_live_123"), Ok(first.clone()));
    assert_ne!(authorization("Bearer sk_live_124"), Ok(first));
}

#[test]
fn a_credential_is_never_stored_or_shown() {
    let scope = authorization("Bearer sk_live_123").expect("a scope");
    assert!(!scope.as_str().contains("sk_live"));
    assert!(!format!("{scope:?}").contains("sk_live"));
}

#[test]
fn without_a_credential_there_is_no_scope() {
    let rule = ScopeRule::authorization();
    assert_eq!(rule.read(&request(&[])), Err(NoScope::Missing));
    assert_eq!(rule.read(&request(&[("authorization", "  ")])), Err(NoScope::Missing));
    let twice = request(&[("authorization", "Basic a"), ("authorization", "Basic b")]);
    assert_eq!(rule.read(&twice), Err(NoScope::Missing));
}

#[test]
fn a_bearer_token_shaped_like_a_jwt_is_refused() {
    // {"alg":"HS256"} . {"sub":"a"} . some signature
    let jwt = "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiJhIn0.c2lnbmF0dXJl";
    assert_eq!(authorization(&format!("Bearer {jwt}")), Err(NoScope::Unstable));
    assert_eq!(authorization(&format!("bearer {jwt}")), Err(NoScope::Unstable));
    assert_eq!(authorization(&format!("Bearer {jwt}.eA.eQ")), Err(NoScope::Unstable));
    for opaque in ["a.b.c", "sk.live.123", "eyJhbGciOiJIUzI1NiJ9", "v2.public.token"] {
        assert!(authorization(&format!("Bearer {opaque}")).is_ok(), "{opaque}");
    }
}

#[test]
fn a_scheme_that_signs_each_request_is_refused() {
    for scheme in ["Digest username=\"a\"", "AWS4-HMAC-SHA256 Credential=a", "Hawk id=\"a\""] {
        assert_eq!(authorization(scheme), Err(NoScope::Unstable), "{scheme}");
    }
    assert!(authorization("Basic dXNlcjpwYXNz").is_ok());
}

#[test]
fn a_header_names_the_scope_and_must_be_single() {
    let rule = ScopeRule::header(HeaderName::from_static("x-account"));
    let acme = rule.read(&request(&[("x-account", "acme")])).expect("a scope");
    assert_eq!(acme.as_str(), "acme");
    assert_eq!(rule.read(&request(&[])), Err(NoScope::Missing));
    assert_eq!(rule.read(&request(&[("x-account", "")])), Err(NoScope::Missing));
    let two = request(&[("x-account", "acme"), ("x-account", "evil")]);
    assert_eq!(rule.read(&two), Err(NoScope::Missing));
    let long = "a".repeat(256);
    assert_eq!(rule.read(&request(&[("x-account", &long)])), Err(NoScope::Missing));
}

#[test]
fn an_extension_of_an_earlier_layer_names_the_scope() {
    #[derive(Clone)]
    struct Account(u32);
    let rule = ScopeRule::extension("account", |account: &Account| Some(account.0.to_string()));
    let mut parts = request(&[]);
    assert_eq!(rule.read(&parts), Err(NoScope::Missing));
    parts.extensions.insert(Account(7));
    assert_eq!(rule.read(&parts).expect("a scope").as_str(), "7");
}

#[test]
fn anonymous_is_one_scope_for_all() {
    let rule = ScopeRule::anonymous();
    assert_eq!(rule.read(&request(&[])), rule.read(&request(&[("authorization", "Basic a")])));
}

#[cfg(feature = "jwt")]
mod jwt {
    use jsonwebtoken::{EncodingKey, Header, encode};
    use serde_json::json;

    use super::*;

    const SECRET: &[u8] = b"a secret of the test that is long enough";
    const FAR_FUTURE: i64 = 32_503_680_000;

    fn bearer(claims: &serde_json::Value, secret: &[u8]) -> String {
        let token = encode(&Header::default(), claims, &EncodingKey::from_secret(secret));
        format!("Bearer {}", token.expect("a token"))
    }

    fn read(rule: &ScopeRule, credential: &str) -> Result<String, NoScope> {
        let scope = rule.read(&request(&[("authorization", credential)]))?;
        Ok(scope.as_str().to_owned())
    }

    fn rule() -> ScopeRule {
        ScopeRule::jwt(JwtVerifier::new("sub", JwtKey::Secret(SECRET.into())).expect("a key"))
    }

    #[test]
    fn a_refreshed_token_keeps_its_scope() {
        let first = bearer(&json!({ "sub": "acme", "exp": FAR_FUTURE }), SECRET);
        let second = bearer(&json!({ "sub": "acme", "exp": FAR_FUTURE + 60 }), SECRET);
        assert_ne!(first, second);
        assert_eq!(read(&rule(), &first).as_deref(), Ok("acme"));
        assert_eq!(read(&rule(), &second).as_deref(), Ok("acme"));
    }

    #[test]
    fn a_token_that_does_not_verify_gives_no_scope() {
        let claims = json!({ "sub": "acme", "exp": FAR_FUTURE });
        let forged = bearer(&claims, b"another secret that is long enough too");
        let expired = bearer(&json!({ "sub": "acme", "exp": 1_000 }), SECRET);
        let endless = bearer(&json!({ "sub": "acme" }), SECRET);
        let nameless = bearer(&json!({ "exp": FAR_FUTURE }), SECRET);
        // {"alg":"none"} . {"sub":"acme"} . nothing
        let unsigned = "Bearer eyJhbGciOiJub25lIn0.eyJzdWIiOiJhY21lIn0.".to_owned();
        for bad in [forged, expired, endless, nameless, unsigned, "Basic abc".to_owned()] {
            assert_eq!(read(&rule(), &bad), Err(NoScope::Missing), "{bad}");
        }
        assert!(read(&rule(), &bearer(&claims, SECRET)).is_ok());
    }

    #[test]
    fn a_token_for_another_audience_or_issuer_gives_no_scope() {
        let verifier = JwtVerifier::new("sub", JwtKey::Secret(SECRET.into())).expect("a key");
        let rule = ScopeRule::jwt(verifier.audience(&["payments"]).issuer(&["login"]));
        let token = |audience: &str, issuer: &str| {
            let claims =
                json!({ "sub": "acme", "exp": FAR_FUTURE, "aud": audience, "iss": issuer });
            bearer(&claims, SECRET)
        };
        assert_eq!(read(&rule, &token("payments", "login")).as_deref(), Ok("login|acme"));
        assert_eq!(read(&rule, &token("billing", "login")), Err(NoScope::Missing));
        assert_eq!(read(&rule, &token("payments", "other")), Err(NoScope::Missing));
    }

    #[test]
    fn two_issuers_with_the_same_name_do_not_share_a_scope() {
        let scope = |claims: serde_json::Value| {
            let mut claims = claims;
            claims["exp"] = FAR_FUTURE.into();
            read(&rule(), &bearer(&claims, SECRET))
        };
        let claims = [
            json!({ "sub": "acme" }),
            json!({ "sub": "acme", "iss": "one" }),
            json!({ "sub": "acme", "iss": "two" }),
            json!({ "sub": "two|acme" }),
            json!({ "sub": "acme", "iss": "" }),
            json!({ "sub": "two|acme", "iss": "a" }),
            json!({ "sub": "acme", "iss": "a|two" }),
            json!({ "sub": "acme", "iss": "a%7Ctwo" }),
        ];
        let scopes: std::collections::BTreeSet<String> =
            claims.iter().map(|claims| scope(claims.clone()).expect("a scope")).collect();
        assert_eq!(scopes.len(), claims.len(), "{scopes:?}");
        let (one, other) = (json!({ "sub": "acme", "iss": "one", "jti": "1" }), claims[1].clone());
        assert_eq!(scope(one), scope(other), "a refreshed token");
        assert_eq!(scope(json!({ "sub": "acme", "iss": 7 })), Err(NoScope::Missing));
        assert_eq!(scope(json!({ "sub": "", "iss": "one" })), Err(NoScope::Missing));
        // A store of the time before would take every key for a new one.
        assert_ne!(rule().identity(), rule().name());
    }
}
