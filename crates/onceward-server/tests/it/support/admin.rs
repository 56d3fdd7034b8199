use std::net::SocketAddr;

use serde_json::Value;

use super::{Answer, Connection, Gateway, eventually, send};

/// The token of `alice`, in gateways that were started with [`ALICE`].
pub(crate) const TOKEN: &str = "token-of-alice-0123456789";

/// Settings that let `alice` in.
pub(crate) const ALICE: &str = "[admin]\ntokens = { alice = \"token-of-alice-0123456789\" }\n";

/// A request to the admin API with the token of `alice`.
pub(crate) fn admin(gateway: &Gateway, method: &str, path: &str, body: Option<&Value>) -> Answer {
    let body = body.map(Value::to_string);
    let kind = if body.is_some() { "Content-Type: application/json\r\n" } else { "" };
    let headers = format!("Authorization: Bearer {TOKEN}\r\n{kind}");
    raw(gateway, method, path, &headers, body.unwrap_or_default().as_bytes())
}

/// A request to the admin API with these header lines.
pub(crate) fn raw(
    gateway: &Gateway,
    method: &str,
    path: &str,
    headers: &str,
    body: &[u8],
) -> Answer {
    let host = gateway.admin;
    let host = if headers.contains("Host:") { String::new() } else { format!("Host: {host}\r\n") };
    let head = format!(
        "{method} {path} HTTP/1.1\r\n{host}{headers}Content-Length: {}\r\n\r\n",
        body.len()
    );
    let mut connection = Connection::open(gateway.admin).expect("a connection");
    connection.write(&[head.as_bytes(), body].concat()).expect("sent");
    connection.read_answer().expect("an answer")
}

/// What the admin listener answers to whoever has no token.
pub(crate) fn get(admin: SocketAddr, path: &str) -> Answer {
    let request = format!("GET {path} HTTP/1.1\r\nHost: {admin}\r\nConnection: close\r\n\r\n");
    send(admin, &request).expect("an answer")
}

/// Waits until the gateway says that it takes nothing any more.
pub(crate) fn until_not_ready(gateway: &Gateway) {
    eventually("the end of readiness", || {
        (get(gateway.admin, "/readyz").status == 503).then_some(())
    });
}

/// The document of an answer that is not a refusal.
pub(crate) fn document(answer: &Answer) -> Value {
    assert_eq!(answer.status, 200, "{}", answer.text());
    serde_json::from_str(answer.text()).expect("JSON")
}

/// Status and code of a refusal.
pub(crate) fn refusal(answer: &Answer) -> (u16, String) {
    let kind = answer.header("content-type");
    assert_eq!(kind, Some("application/problem+json"), "{} {}", answer.status, answer.text());
    let document: Value = serde_json::from_str(answer.text()).expect("JSON");
    assert_eq!(document["status"], answer.status);
    (answer.status, document["code"].as_str().expect("a code").to_owned())
}
