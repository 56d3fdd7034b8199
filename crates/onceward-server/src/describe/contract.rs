//! What clients of the API have to know, for the team's own documentation.

use onceward::{
    InFlight, Limits,
    policy::{Meaning, Presence},
    rejection::Code,
};
use serde_json::{Value, json};

use super::show;
use crate::config::{Config, KeyUse, Route};

/// Statuses by which the rules for upstream's own answers can be told.
const SAMPLES: [u16; 12] = [200, 301, 400, 401, 403, 408, 425, 429, 500, 502, 503, 504];

pub(super) fn json(config: &Config) -> Value {
    let routes = config.routes.all().map(|route| {
        let kept = |meaning: Meaning| -> Vec<u16> {
            let of_route = |status: &u16| {
                http::StatusCode::from_u16(*status)
                    .is_ok_and(|status| route.policy.meaning_of(status) == meaning)
            };
            SAMPLES.into_iter().filter(of_route).collect()
        };
        json!({
            "match": route.pattern.as_ref().map(|_| route.name()),
            "key": route.key.name(),
            "protects": show::protects(route),
            "mismatch_status": route.policy.rules().profile.mismatch_status().as_u16(),
            "retention_seconds": route.policy.rules().retention.as_secs(),
            "tombstone_seconds": route.policy.rules().tombstone.as_secs(),
            "stored": kept(Meaning::Final),
            "runs_again": kept(Meaning::NotExecuted),
            "unknown": kept(Meaning::Unknown),
            "codes": codes(route, &config.quota).into_iter().map(Code::name).collect::<Vec<_>>(),
        })
    });
    json!({
        "scope": config.scope.name(),
        "key_min_len": config.key_rules.len_min,
        "key_max_len": config.key_rules.len_max,
        "kept": {
            "keys": if config.privacy.lookup_key.is_some() { "hmac" } else { "plain" },
            "replies": if config.privacy.ring.is_some() { "encrypted" } else { "plain" },
        },
        "routes": routes.collect::<Vec<Value>>(),
    })
}

pub(super) fn markdown(config: &Config) -> String {
    let mut text = String::from("# Retries\n\n");
    text.push_str(
        "Requests that change something carry the header `Idempotency-Key`. Repeat a request with \
         the same key and it is not done a second time: you get the first reply again, byte for \
         byte, with the same status. Make the key before the first attempt, keep it with what you \
         are about to do, and send it with every attempt.\n\n",
    );
    text.push_str(&key(config));
    text.push_str(&replay());
    text.push_str(&kept(config));
    text.push_str("## Which requests\n\n");
    for route in config.routes.all() {
        text.push_str(&of_route(route));
    }
    text.push_str(&errors(config));
    text
}

fn key(config: &Config) -> String {
    let rules = &config.key_rules;
    let form = match rules.syntax {
        onceward::key::Syntax::Lenient => "in double quotes or bare, which is the same key",
        onceward::key::Syntax::Strict => "in double quotes (a structured-field string)",
    };
    let emails = match rules.emails {
        onceward::key::Emails::Count => "",
        onceward::key::Emails::Reject => " E-mail addresses are refused.",
    };
    let scope = match config.scope.name().split_once(':') {
        None if config.scope.name() == "anonymous" => {
            "Keys are shared by all callers: make them impossible to guess.".to_owned()
        }
        None => "Keys belong to your credential (`Authorization`): nobody else's key can meet \
                 yours. With another credential the same key is another request."
            .to_owned(),
        Some(("jwt", claim)) => format!(
            "Keys belong to the account that your token names (claim `{claim}`). A new token of the \
             same account sees the same keys."
        ),
        Some((_, name)) => format!("Keys belong to the account (`{name}`) that you are known by."),
    };
    format!(
        "## The key\n\nOne header line, {} to {} characters, {form}. A random UUID is best. Never \
         put personal data into it.{emails} A key that cannot be read is refused and never taken \
         for a missing one.\n\n{scope}\n\n",
        rules.len_min, rules.len_max
    )
}

fn replay() -> String {
    "## What comes back\n\n\
     What is stored of a reply: its status, its body and its headers, without cookies, date, CORS \
     and connection headers. A replay is the same status and the same bytes.\n\n\
     | header | says |\n| --- | --- |\n\
     | `Idempotent-Replayed: true` | this is a stored reply |\n\
     | `Idempotency-Expires` | until when the reply is kept |\n\
     | `Idempotency-Generation` | from 2 on: the key had expired, and ran again |\n\
     | `Onceward-Outcome` | `executed`, `replayed`, `conflict`, `mismatch`, `unknown`, ... |\n\
     | `Retry-After` | how many seconds to wait before the next attempt |\n\n"
        .to_owned()
}

fn kept(config: &Config) -> String {
    let key = match config.privacy.lookup_key {
        Some(_) => "a digest of it that needs a secret (HMAC); the key itself is not stored",
        None => "as it was sent",
    };
    let reply = match config.privacy.ring {
        Some(_) => "encrypted, with a key for each account",
        None => "as it was sent",
    };
    format!(
        "## What is kept\n\n\
         | what | how |\n| --- | --- |\n\
         | your key | {key} |\n\
         | headers and body of the reply | {reply} |\n\
         | the body of the request | not kept, only a digest of it; where an operation is queued \
         or runs in phases, like a reply until it ends |\n\
         | method, path without query, status, times | as they were |\n\
         | credentials, cookies | never |\n\n"
    )
}

fn of_route(route: &Route) -> String {
    let name = match &route.pattern {
        Some(pattern) => format!("`{}`", pattern.as_str()),
        None => "All other requests".to_owned(),
    };
    let mut text = format!("### {name}\n\n");
    let methods = show::protects(route).join(", ");
    if methods.is_empty() || route.key == KeyUse::Shadow {
        text.push_str("Not protected: a key has no meaning here. A retry is a new request.\n\n");
        return text;
    }
    let rules = route.policy.rules();
    let key = match rules.presence {
        Presence::Required => "required; 400 without one",
        Presence::Optional => "optional; a request without one is not protected",
    };
    let in_flight = match rules.in_flight {
        _ if rules.queued.is_some() => "202 again, with the same `Location`".to_owned(),
        InFlight::Conflict => "409 and `Retry-After`".to_owned(),
        InFlight::Wait(at_most) => {
            format!("the retry waits up to {} for the reply, then 409", show::duration(at_most))
        }
        InFlight::Accepted => "202 and the address (`Location`) of its state".to_owned(),
    };
    let expired = match (rules.expired_runs_again, rules.tombstone.is_zero()) {
        (true, _) => "it runs again, as the next generation".to_owned(),
        (false, true) => "the key is new".to_owned(),
        (false, false) => {
            format!("410 for {}, then the key is new", show::duration(rules.tombstone))
        }
    };
    let server_error = match route.policy.meaning_of(http::StatusCode::INTERNAL_SERVER_ERROR) {
        Meaning::Final => "stored and replayed like any other reply",
        Meaning::NotExecuted => "passed on, and a retry runs again",
        Meaning::Unknown => "the outcome is unknown: a retry gets 409 and is not run",
    };
    let mut rows = vec![
        ("protected methods", methods),
        ("key", key.to_owned()),
        ("the same key, another request", mismatch(route)),
        ("a retry while the first one runs", in_flight),
        (
            "stored",
            "2xx, 3xx and 4xx, except 401, 403, 408, 425 and 429: after those a retry runs"
                .to_owned(),
        ),
        ("5xx of the service", server_error.to_owned()),
        (
            "no full answer (502, 504)",
            "the outcome is unknown: 409 until it is found out".to_owned(),
        ),
        ("kept for", format!("{} from completion", show::duration(rules.retention))),
        ("after that", expired),
        ("largest request", format!("{} bytes; 413 above", route.policy.request_cap())),
        (
            "largest stored reply",
            format!(
                "{} bytes; a retry of a larger one gets 410, and is not run",
                route.policy.reply_cap()
            ),
        ),
        ("what is compared", compared(route)),
        ("if the store is down", "503 and `Retry-After`; nothing is run".to_owned()),
    ];
    if let Some(queued) = rules.queued {
        rows.push((
            "execution",
            format!(
                "queued: 202 with the address (`Location`) of its state, then executed; a retry gets \
                 the reply once there is one, or 504 `idempotency_not_executed` if there was none \
                 within {}",
                show::duration(queued.time())
            ),
        ));
    }
    if let Some(age) = &route.max_age {
        let told = match &age.header {
            Some(header) => format!("told by `{header}` (HTTP-date or seconds since 1970)"),
            None => "told by the key, which has to be a UUID of version 7".to_owned(),
        };
        rows.push((
            "oldest request",
            format!("{}, {told}; 400 above", show::duration(age.at_most)),
        ));
    }
    text.push_str("| question | answer |\n| --- | --- |\n");
    for (question, answer) in rows {
        text.push_str(&format!("| {question} | {answer} |\n"));
    }
    text.push('\n');
    text
}

fn mismatch(route: &Route) -> String {
    let status = route.policy.rules().profile.mismatch_status().as_u16();
    format!("{status}, in every state, before anything else is told")
}

fn compared(route: &Route) -> String {
    let mut parts = vec!["method, path, query, media type".to_owned()];
    let headers = route.chosen.headers.iter().map(|name| format!("`{name}`"));
    parts.extend(headers);
    let list = |paths: &[String]| {
        paths.iter().map(|path| format!("`{path}`")).collect::<Vec<_>>().join(", ")
    };
    parts.push(match (&*route.chosen.include, &*route.chosen.exclude) {
        ([], []) => "and the body (JSON and forms by their meaning)".to_owned(),
        ([], exclude) => format!("and the body without {}", list(exclude)),
        (include, []) => format!("and of a JSON body {}", list(include)),
        (include, exclude) => {
            format!("and of a JSON body {} without {}", list(include), list(exclude))
        }
    });
    parts.join(", ")
}

/// The codes that requests on a route may get.
fn codes(route: &Route, quota: &Limits) -> Vec<Code> {
    if show::protects(route).is_empty() || route.key == KeyUse::Shadow {
        return vec![Code::UpstreamUnreachable];
    }
    let rules = route.policy.rules();
    let can_be = |code: &Code| match code {
        Code::KeyMissing => rules.presence == Presence::Required,
        Code::KeyExpired => !rules.expired_runs_again && !rules.tombstone.is_zero(),
        Code::RequestTooOld => route.max_age.is_some(),
        Code::RateLimited => *quota != Limits::OFF,
        _ => true,
    };
    Code::ALL.into_iter().filter(can_be).collect()
}

fn errors(config: &Config) -> String {
    let mut text = String::from(
        "## Errors\n\n`application/problem+json` documents with a member `code`, and a member \
         `retry` that says what a program may do: `same_key`, `new_key` or `never`.\n\n\
         | code | status | retry |\n| --- | --- | --- |\n",
    );
    let known: Vec<Code> =
        config.routes.all().flat_map(|route| codes(route, &config.quota)).collect();
    for code in Code::ALL.into_iter().filter(|code| known.contains(code)) {
        let (name, status, retry) = (code.name(), code.status().as_u16(), code.retry().name());
        text.push_str(&format!("| `{name}` | {status} | `{retry}` |\n"));
    }
    text
}
