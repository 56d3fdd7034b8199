//! The OpenAPI document is the truth: all of it answers, and whatever is sent, every answer is one
//! that it tells of.

use std::collections::BTreeMap;

use rand::{RngExt as _, SeedableRng as _, rngs::StdRng, seq::IndexedRandom as _};
use serde_json::{Map, Value, json};

use crate::{
    messages::{Home, letter},
    support::{
        ALICE, Act, Answer, Gate, Gateway, TOKEN, Upstream, admin, document, post, raw, response,
        violation,
    },
};

/// So many messages are dead letters at the beginning.
const MESSAGES: u32 = 20;

/// An endpoint of the document.
struct Endpoint {
    path: String,
    method: String,
    operation: Value,
}

fn endpoints(openapi: &Value) -> Vec<Endpoint> {
    let mut endpoints = Vec::new();
    for (path, item) in openapi["paths"].as_object().expect("paths") {
        for (method, operation) in item.as_object().expect("methods") {
            let (path, method) = (path.clone(), method.to_uppercase());
            endpoints.push(Endpoint { path, method, operation: operation.clone() });
        }
    }
    endpoints
}

/// A gateway with a record in each of a few states, and with messages.
fn populated() -> (Upstream, Gateway, Home, Vec<Value>) {
    let upstream = Upstream::start(|_, seen| match &seen.body[..] {
        b"\"vanish\"" => Act::SendAndClose(Vec::new(), Gate::default()),
        _ => Act::Send(response(201, "", "done")),
    });
    let home = Home::file();
    let store = format!("[store]\nurl = \"{}\"\n{ALICE}", home.url);
    let gateway = Gateway::with(upstream.address, &store);
    home.service().letters((0..MESSAGES).map(|number| letter(&format!("m-{number}"))));
    for number in 0..40 {
        let body = if number % 2 == 0 { "\"vanish\"" } else { "{}" };
        post(gateway.address, &format!("order-{number:016}"), body, &[]);
    }
    let page = document(&admin(&gateway, "GET", "/api/v1/keys", None));
    let records = page["records"].as_array().expect("records").clone();
    (upstream, gateway, home, records)
}

fn id_of(record: &Value) -> &str {
    record["id"].as_str().expect("an id")
}

impl Endpoint {
    /// Where it is, about something that is there.
    fn path_to(&self, record: &Value) -> String {
        let id = if self.path.contains("/messages/") { "1" } else { id_of(record) };
        self.path.replace("{id}", id)
    }

    fn parameters(&self) -> Vec<&Value> {
        let known = self.operation["parameters"].as_array().into_iter().flatten();
        known.filter(|parameter| parameter["in"] == "query").collect()
    }

    fn takes_a_body(&self) -> bool {
        self.operation.get("requestBody").is_some()
    }
}

/// Whether the document tells of this answer.
fn judge(openapi: &Value, endpoint: &Endpoint, answer: &Answer, sent: &str) {
    let status = answer.status;
    assert!(status < 500, "{sent}: {status} {}", answer.text());
    let told = &endpoint.operation["responses"][status.to_string()];
    assert!(told.is_object(), "{sent}: {status} is not told of");
    let kind = answer.header("content-type").unwrap_or_default();
    let schema = &told["content"][kind]["schema"];
    assert!(schema.is_object(), "{sent}: {kind} is not told of for {status}");
    let lines = kind == "application/jsonl";
    let bodies: Vec<&str> =
        if lines { answer.text().lines().collect() } else { vec![answer.text()] };
    for body in bodies {
        let body: Value = serde_json::from_str(body).expect("JSON");
        let wrong = violation(openapi, schema, &body);
        assert_eq!(wrong, None, "{sent}: {status} {body}");
    }
}

#[test]
fn every_path_and_method_of_the_document_answers_as_it_says() {
    let (_upstream, gateway, _home, records) = populated();
    let openapi = document(&admin(&gateway, "GET", "/api/v1/openapi.json", None));
    assert_eq!(openapi["openapi"], "3.1.0");
    let endpoints = endpoints(&openapi);
    assert_eq!(endpoints.len(), 21);
    for endpoint in &endpoints {
        let path = endpoint.path_to(&records[0]);
        let body = endpoint.takes_a_body().then(|| json!({}));
        let answer = admin(&gateway, &endpoint.method, &path, body.as_ref());
        let expected = if body.is_some() { 400 } else { 200 };
        assert_eq!(answer.status, expected, "{} {path}: {}", endpoint.method, answer.text());
        judge(&openapi, endpoint, &answer, &path);
        let other = admin(&gateway, "DELETE", &path, None);
        assert_eq!(other.status, 405);
        assert!(other.header("allow").is_some_and(|allow| allow.contains(&endpoint.method)));
        judge(&openapi, endpoint, &other, &path);
    }
}

#[test]
fn whatever_is_sent_the_answer_is_one_that_the_document_tells_of() {
    let seed: u64 = match std::env::var("ONCEWARD_SEED") {
        Ok(seed) => seed.parse().expect("a number"),
        Err(_) => rand::random(),
    };
    println!("ONCEWARD_SEED={seed}");
    let mut random = StdRng::seed_from_u64(seed);
    let (_upstream, gateway, _home, records) = populated();
    let openapi = document(&admin(&gateway, "GET", "/api/v1/openapi.json", None));
    let endpoints = endpoints(&openapi);
    let mut statuses = BTreeMap::<u16, u32>::new();
    let mut refused = 0;
    for _ in 0..1500 {
        let endpoint = endpoints.choose(&mut random).expect("endpoints");
        let record = records.choose(&mut random).expect("records");
        let id = match random.random_range(0..4) {
            0 => word(&mut random),
            _ if endpoint.path.contains("/messages/") => {
                random.random_range(1..=MESSAGES + 1).to_string()
            }
            _ => id_of(record).to_owned(),
        };
        let mut path = endpoint.path.replace("{id}", &encoded(&id));
        let query = query(&mut random, endpoint);
        if !query.is_empty() {
            let pairs = query.iter().map(|(name, value)| format!("{name}={}", encoded(value)));
            path = format!("{path}?{}", pairs.collect::<Vec<_>>().join("&"));
        }
        let schema = &endpoint.operation["requestBody"]["content"]["application/json"]["schema"];
        let mut body = schema.is_object().then(|| made(&mut random, &openapi, schema));
        // Mostly it is about the record as it was at first.
        for part in ["generation", "fence"] {
            if let Some(said) = body.as_mut().and_then(|body| body.get_mut(part))
                && random.random_range(0..8) > 0
            {
                *said = record[part].clone();
            }
        }
        let answer = admin(&gateway, &endpoint.method, &path, body.as_ref());
        let sent = format!("{} {path} {body:?}", endpoint.method);
        judge(&openapi, endpoint, &answer, &sent);
        let wrong = body.as_ref().and_then(|body| violation(&openapi, schema, body));
        let wrong = wrong.or_else(|| wrong_parameter(&openapi, endpoint, &id, &query));
        if let Some(wrong) = wrong {
            // It is there for nobody, or it is wrong.
            assert!((400..500).contains(&answer.status), "{sent}: {} for {wrong}", answer.status);
            refused += 1;
        }
        *statuses.entry(answer.status).or_default() += 1;
    }
    assert!(refused > 50, "enough of it was wrong: {refused}");
    // It reached what it is about: calls that were done, refused, and in conflict.
    for status in [200, 400, 404, 409] {
        assert!(statuses.get(&status).is_some_and(|count| *count > 5), "{statuses:?}");
    }
}

/// No body is larger.
const BODY_MAX: usize = 2 << 20;

#[test]
fn what_an_operation_does_not_take_is_refused_as_the_document_says() {
    let (_upstream, gateway, _home, records) = populated();
    let openapi = document(&admin(&gateway, "GET", "/api/v1/openapi.json", None));
    let token = format!("Authorization: Bearer {TOKEN}\r\n");
    for endpoint in &endpoints(&openapi) {
        let path = endpoint.path_to(&records[0]);
        let ask = |method: &str, path: &str, headers: &str, body: &[u8]| {
            let answer = raw(&gateway, method, path, headers, body);
            let begun = String::from_utf8_lossy(&body[..body.len().min(40)]).into_owned();
            judge(&openapi, endpoint, &answer, &format!("{method} {path} {begun:?}"));
            answer.status
        };
        let own = &*endpoint.method;
        for method in ["GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "FOO"] {
            if openapi["paths"][&endpoint.path][method.to_lowercase()].is_null() {
                assert_eq!(ask(method, &path, &token, b""), 405, "{method} {path}");
            }
        }
        for (headers, expected) in [
            (String::new(), 401),
            ("Authorization: Bearer somebody\r\n".to_owned(), 401),
            ("Authorization: Basic YTpi\r\n".to_owned(), 401),
            (format!("{token}Host: evil.example\r\n"), 403),
            (format!("{token}Origin: http://evil.example\r\n"), 403),
            (format!("{token}Sec-Fetch-Site: cross-site\r\n"), 403),
        ] {
            assert_eq!(ask(own, &path, &headers, b""), expected, "{own} {path} {headers}");
        }
        assert_eq!(ask(own, &format!("{path}?no_such=1"), &token, b""), 400, "{path}");
        refuse_values(endpoint, &|query| ask(own, &format!("{path}?{query}"), &token, b""));
        if endpoint.takes_a_body() {
            refuse_bodies(&|kind, body| ask(own, &path, &format!("{token}{kind}"), body));
        }
    }
}

/// Whatever a parameter holds, it is taken or refused. That it is said twice is refused.
fn refuse_values(endpoint: &Endpoint, ask: &impl Fn(&str) -> u16) {
    for parameter in endpoint.parameters() {
        let name = parameter["name"].as_str().expect("a name");
        for value in [
            "",
            "-1",
            "0",
            "1e3",
            "18446744073709551616",
            "%00",
            "%ff",
            "%zz",
            "%",
            "%F0%9F%92%A9",
            "%E2%80%AE",
            "%0d%0aX:%201",
            &"9".repeat(2_000),
        ] {
            assert!(matches!(ask(&format!("{name}={value}")), 200 | 400 | 404), "{name}={value}");
        }
        assert_eq!(ask(&format!("{name}=1&{name}=1")), 400, "{name}");
    }
}

/// None of these is a document that an operation takes.
fn refuse_bodies(ask: &impl Fn(&str, &[u8]) -> u16) {
    let json = "Content-Type: application/json\r\n";
    for kind in ["", "Content-Type: text/plain\r\n", "Content-Type: application/json-seq\r\n"] {
        assert_eq!(ask(kind, b"{}"), 415, "{kind}");
    }
    let deep = [vec![b'['; 50_000], vec![b']'; 50_000]].concat();
    let in_a_member = [&b"{\"reason\":"[..], &deep, b"}"].concat();
    for body in [
        &b""[..],
        b" ",
        b"{",
        b"{}{}",
        b"[]",
        b"[{}]",
        b"1",
        b"-0.5e400",
        b"\"reason\"",
        b"null",
        b"true",
        b"NaN",
        b"{\"reason\":\"\xff\"}",
        b"{\"reason\":\"\\ud800\"}",
        b"{\"reason\":1}",
        b"{\"reason\":null}",
        b"\xef\xbb\xbf{}",
        b"\0",
        &deep,
        &in_a_member,
    ] {
        let begun = String::from_utf8_lossy(&body[..body.len().min(40)]);
        assert_eq!(ask(json, body), 400, "{begun}");
    }
    assert_eq!(ask(json, &vec![b' '; BODY_MAX + 1]), 413);
}

/// Texts that programs stumble over, and some that fit.
const WORDS: [&str; 22] = [
    "",
    " ",
    "a",
    "unknown",
    "completed",
    "release",
    "void",
    "not_executed",
    "created_at",
    "2026-01-01T00:00:00Z",
    "9999-12-31T23:59:60+23:59",
    "1h",
    "999999d",
    "\u{0}",
    "\n",
    "%",
    "'; DROP TABLE records",
    "\u{202e}\u{1f4a9}",
    "v1.YQ.Yg",
    "-1",
    "1e400",
    "\\x00",
];

fn word(random: &mut StdRng) -> String {
    match random.random_range(0..10) {
        0 => "x".repeat(random.random_range(200..1200)),
        _ => (*WORDS.choose(random).expect("words")).to_owned(),
    }
}

fn encoded(text: &str) -> String {
    text.bytes()
        .map(|byte| match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'.' | b'-' | b'_' => {
                char::from(byte).to_string()
            }
            _ => format!("%{byte:02X}"),
        })
        .collect()
}

/// What the document does not allow in an address.
fn wrong_parameter(
    openapi: &Value,
    endpoint: &Endpoint,
    id: &str,
    query: &[(String, String)],
) -> Option<String> {
    let known = endpoint.operation["parameters"].as_array().into_iter().flatten();
    let known: BTreeMap<&str, &Value> = known
        .map(|parameter| (parameter["name"].as_str().expect("a name"), &parameter["schema"]))
        .collect();
    let in_path = known.get("id").filter(|_| endpoint.path.contains("{id}"));
    let in_path = in_path.and_then(|schema| violation(openapi, schema, &json!(id)));
    in_path.or_else(|| {
        query.iter().find_map(|(name, value)| {
            let Some(schema) = known.get(name.as_str()) else {
                return Some(format!("{name} is unknown"));
            };
            let value = match schema["type"].as_str() {
                Some("integer") => value.parse::<i64>().map_or(json!(value), Value::from),
                Some("boolean") => value.parse::<bool>().map_or(json!(value), Value::from),
                _ => json!(value),
            };
            violation(openapi, schema, &value)
        })
    })
}

fn query(random: &mut StdRng, endpoint: &Endpoint) -> Vec<(String, String)> {
    let mut pairs = Vec::new();
    for parameter in endpoint.parameters() {
        if random.random_range(0..6) > 0 {
            continue;
        }
        let name = parameter["name"].as_str().expect("a name");
        let value = match parameter["schema"]["enum"].as_array() {
            Some(allowed) if random.random() => {
                allowed.choose(random).and_then(Value::as_str).expect("values").to_owned()
            }
            _ => word(random),
        };
        pairs.push((name.to_owned(), value));
    }
    if random.random_range(0..30) == 0 {
        pairs.push((encoded(&word(random)), "1".to_owned()));
    }
    pairs
}

/// A value of a schema, more often than not.
fn made(random: &mut StdRng, openapi: &Value, schema: &Value) -> Value {
    if random.random_range(0..25) == 0 {
        return nonsense(random);
    }
    if let Some(name) = schema["$ref"].as_str() {
        let target = openapi.pointer(name.trim_start_matches('#')).expect("a schema");
        return made(random, openapi, target);
    }
    if let Some(choices) = schema["oneOf"].as_array() {
        let choice = choices.choose(random).expect("choices");
        return made(random, openapi, choice);
    }
    if let Some(allowed) = schema["enum"].as_array() {
        return allowed.choose(random).expect("values").clone();
    }
    let kind = match &schema["type"] {
        Value::Array(kinds) => kinds.choose(random).cloned().unwrap_or_default(),
        kind => kind.clone(),
    };
    match kind.as_str() {
        Some("object") => {
            let required = schema["required"].as_array().cloned().unwrap_or_default();
            let mut object = Map::new();
            for (name, property) in schema["properties"].as_object().into_iter().flatten() {
                let needed = required.contains(&json!(name));
                if needed && random.random_range(0..40) > 0 || random.random_range(0..4) == 0 {
                    object.insert(name.clone(), made(random, openapi, property));
                }
            }
            if random.random_range(0..40) == 0 {
                object.insert(word(random), nonsense(random));
            }
            Value::Object(object)
        }
        Some("string") if schema["format"] == "date-time" => json!("2026-01-01T00:00:00Z"),
        Some("string") if random.random() => json!("ticket 7"),
        Some("string") => json!(word(random)),
        Some("integer") => match random.random_range(0..4) {
            0 => json!(random.random::<i64>()),
            1 => json!(-1),
            _ => json!(random.random_range(1..600)),
        },
        Some("boolean") => json!(random.random::<bool>()),
        _ => Value::Null,
    }
}

fn nonsense(random: &mut StdRng) -> Value {
    let some =
        [Value::Null, json!([]), json!({}), json!(0.5), json!(u64::MAX), json!(word(random))];
    some.choose(random).expect("values").clone()
}
