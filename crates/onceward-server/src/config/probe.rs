//! `probe`: how a route's unknown outcomes are asked about.

use std::{
    net::{IpAddr, Ipv4Addr},
    time::Duration,
};

use anyhow::{Context as _, Result, bail, ensure};
use http::{HeaderName, HeaderValue, Method, StatusCode, Uri};
use schemars::JsonSchema;
use serde::Deserialize;

use super::{duration, secret::Text};

/// How unknown outcomes are asked about, as it is written.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct ProbeFile {
    /// Where to ask, such as `https://bank.internal/charges?key={key}`. `{key}`, `{operation}`,
    /// `{attempt}`, `{scope}` and `{generation}` may stand in the path and the query.
    pub(crate) url: Text,
    /// `GET` (the default) or another method that only looks.
    pub(crate) method: Option<Text>,
    /// Headers that are sent, such as `authorization`.
    #[serde(default)]
    pub(crate) headers: std::collections::BTreeMap<String, Text>,
    /// How long an answer may take. 10s by default.
    pub(crate) timeout: Option<Text>,
    /// Whether the host may have a private, loopback or link-local address. No by default.
    #[serde(default)]
    pub(crate) allow_private: bool,
    /// Which answer means that it was executed.
    pub(crate) completed: CompletedFile,
    /// Which answer means that it was not. Without it no answer does.
    pub(crate) not_executed: Option<NotExecutedFile>,
}

/// Which answer means that it was executed, and what its client is told.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct CompletedFile {
    /// One of these statuses.
    pub(crate) status: Vec<u16>,
    /// And in its JSON body at this pointer,
    pub(crate) pointer: Option<Text>,
    /// this value.
    pub(crate) equals: Option<Text>,
    /// The status of the reply: a number, or a pointer to one in the body. 200 by default.
    pub(crate) reply_status: Option<ReplyStatus>,
    /// The part of the body that is the body of the reply, as a pointer. All of it by default.
    pub(crate) reply_body: Option<Text>,
}

/// A status, or where it is.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(untagged)]
pub(crate) enum ReplyStatus {
    Is(u16),
    At(Text),
}

/// Which answer means that it was not executed.
#[derive(Clone, Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct NotExecutedFile {
    /// One of these statuses.
    pub(crate) status: Vec<u16>,
    /// And in its JSON body at this pointer,
    pub(crate) pointer: Option<Text>,
    /// this value.
    pub(crate) equals: Option<Text>,
    /// The answer cannot be wrong, and nothing that is still on its way can make it so: one is enough.
    /// Otherwise two are needed, late enough and apart enough.
    #[serde(default)]
    pub(crate) authoritative: bool,
}

/// How unknown outcomes of a route are asked about.
#[derive(Clone, Debug)]
pub(crate) struct ProbeSettings {
    pub(crate) url: Template,
    pub(crate) method: Method,
    pub(crate) headers: Vec<(HeaderName, HeaderValue)>,
    pub(crate) timeout: Duration,
    pub(crate) allow_private: bool,
    pub(crate) completed: Condition,
    pub(crate) reply_status: ReplyStatus,
    pub(crate) reply_body: Option<String>,
    pub(crate) not_executed: Option<(Condition, bool)>,
}

/// What an answer has to be.
#[derive(Clone, Debug)]
pub(crate) struct Condition {
    pub(crate) status: Vec<StatusCode>,
    pub(crate) is: Option<(String, String)>,
}

/// An address with places in its path and query.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Template {
    text: String,
    parts: Vec<Part>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Part {
    Text(String),
    Place(String),
}

const PLACES: [&str; 5] = ["key", "operation", "attempt", "scope", "generation"];

impl Template {
    /// The host is fixed: places stand behind it only.
    pub(crate) fn parse(text: &str) -> Result<Template> {
        let mut parts = Vec::new();
        let mut rest = text;
        while let Some((before, place)) = rest.split_once('{') {
            let (place, after) = place.split_once('}').context("a `{` is not closed with a `}`")?;
            ensure!(
                PLACES.contains(&place),
                "`{{{place}}}` is not known; there are {{key}}, {{operation}}, {{attempt}}, \
                 {{scope}} and {{generation}}"
            );
            parts.push(Part::Text(before.to_owned()));
            parts.push(Part::Place(place.to_owned()));
            rest = after;
        }
        parts.push(Part::Text(rest.to_owned()));
        let template = Template { text: text.to_owned(), parts };
        let filled = template.fill(|_| Some("x".to_owned())).context("it cannot be filled")?;
        let uri: Uri = filled.parse().context("it is not a URL")?;
        let authority = uri.authority().context("it is not a URL with a host")?.as_str();
        ensure!(
            matches!(uri.scheme_str(), Some("http" | "https")),
            "it is not an http or https URL"
        );
        ensure!(!authority.contains('@'), "credentials belong in `headers`");
        ensure!(!filled.contains('#'), "it must not have a fragment");
        let fixed = format!("{}://{authority}", uri.scheme_str().unwrap_or_default());
        let first = match template.parts.first() {
            Some(Part::Text(first)) => first.as_str(),
            _ => "",
        };
        let behind = first.strip_prefix(&fixed).is_some_and(|path| path.starts_with('/'));
        ensure!(
            ["key", "operation", "attempt"].iter().any(|place| template.uses(place)),
            "it asks about nothing in particular: it needs {{operation}}, {{attempt}} or {{key}}"
        );
        ensure!(
            behind,
            "the host is fixed: places such as {{key}} stand in the path and the query only"
        );
        Ok(template)
    }

    pub(crate) fn as_str(&self) -> &str {
        &self.text
    }

    pub(crate) fn uses(&self, name: &str) -> bool {
        self.parts.iter().any(|part| matches!(part, Part::Place(place) if place == name))
    }

    /// Whether an answer is about this use of the key, and not about an earlier one.
    pub(crate) fn tells_apart(&self, generation: u32) -> bool {
        generation <= 1 || self.uses("generation") || self.uses("attempt")
    }

    /// The address with its places filled. `None` where a value would mean another path.
    pub(crate) fn fill(&self, value: impl Fn(&str) -> Option<String>) -> Option<String> {
        let mut filled = String::new();
        for part in &self.parts {
            match part {
                Part::Text(text) => filled.push_str(text),
                Part::Place(place) => {
                    let value = value(place)?;
                    if matches!(&*value, "" | "." | "..") {
                        return None;
                    }
                    encode(&value, &mut filled);
                }
            }
        }
        Some(filled)
    }

    /// The host, if it is an address.
    fn address(&self) -> Option<IpAddr> {
        // As the client reads it, for whom `127.1` and `2130706433` are addresses too.
        let url = reqwest::Url::parse(&self.fill(|_| Some("x".to_owned()))?).ok()?;
        url.host_str()?.trim_start_matches('[').trim_end_matches(']').parse().ok()
    }
}

/// All but letters, digits, `-`, `_`, `.` and `~` as `%XX`.
fn encode(value: &str, into: &mut String) {
    for byte in value.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'~' => {
                into.push(char::from(byte));
            }
            _ => into.push_str(&format!("%{byte:02X}")),
        }
    }
}

/// Whether an address is one of this machine or of a network that is nobody else's business, or may lead
/// to one.
pub(crate) fn is_private(address: IpAddr) -> bool {
    match address.to_canonical() {
        IpAddr::V4(v4) => is_private_v4(v4),
        IpAddr::V6(v6) => {
            let embedded = |from: usize| {
                let octets = v6.octets();
                let [a, b, c, d] = [from, from + 1, from + 2, from + 3].map(|place| octets[place]);
                is_private_v4(Ipv4Addr::new(a, b, c, d))
            };
            v6.is_loopback()
                || v6.is_unspecified()
                || v6.is_multicast()
                || v6.is_unique_local()
                || v6.is_unicast_link_local()
                || match v6.segments() {
                    // Mapped by a NAT64, by 6to4, and as they were once written.
                    [0x64, 0xff9b, 0, 0, 0, 0, _, _] => embedded(12),
                    [0x64, 0xff9b, 1, ..] => true,
                    [0x2002, ..] => embedded(2),
                    [0, 0, 0, 0, 0, 0, _, _] => true,
                    _ => false,
                }
        }
    }
}

fn is_private_v4(v4: Ipv4Addr) -> bool {
    let [a, b, c, _] = v4.octets();
    v4.is_private()
        || v4.is_loopback()
        || v4.is_link_local()
        || v4.is_multicast()
        || (a == 100 && (64..128).contains(&b))
        || (a == 198 && (18..20).contains(&b))
        || (a, b, c) == (192, 0, 0)
        || a == 0
        || a >= 240
}

pub(super) fn resolve(file: &ProbeFile) -> Result<ProbeSettings> {
    let url = Template::parse(file.url.as_str())
        .with_context(|| format!("url: `{}`", file.url.as_str()))?;
    let method = match &file.method {
        None => Method::GET,
        Some(text) => {
            text.as_str().parse().with_context(|| format!("method `{}`", text.as_str()))?
        }
    };
    ensure!(
        matches!(method, Method::GET | Method::HEAD | Method::POST),
        "method: {method} is none of GET, HEAD and POST"
    );
    let mut headers = Vec::new();
    for (name, value) in &file.headers {
        let name: HeaderName =
            name.parse().with_context(|| format!("headers: `{name}` is not a name"))?;
        // The value may be a secret and is not repeated.
        let mut value = HeaderValue::from_str(value.as_str())
            .map_err(|_| anyhow::anyhow!("headers: the value of {name} cannot be sent"))?;
        value.set_sensitive(true);
        headers.push((name, value));
    }
    let timeout = match &file.timeout {
        None => Duration::from_secs(10),
        Some(text) => duration::parse(text.as_str()).context("timeout")?,
    };
    ensure!(
        (Duration::from_millis(100)..=Duration::from_secs(60)).contains(&timeout),
        "timeout must be from 100ms to 60s"
    );
    if let Some(address) = url.address() {
        ensure!(
            file.allow_private || !is_private(address),
            "url: {address} is a private address; say allow_private = true if it is meant"
        );
    }
    let completed = &file.completed;
    let not_executed = match &file.not_executed {
        None => None,
        Some(file) => {
            let condition = condition(&file.status, &file.pointer, &file.equals);
            Some((condition.context("not_executed")?, file.authoritative))
        }
    };
    match &completed.reply_status {
        Some(ReplyStatus::Is(status)) => ensure!(
            (200..600).contains(status),
            "completed.reply_status: {status} cannot be the status of a reply"
        ),
        Some(ReplyStatus::At(at)) => pointer(at).context("completed.reply_status")?,
        None => {}
    }
    if let Some(at) = &completed.reply_body {
        pointer(at).context("completed.reply_body")?;
    }
    Ok(ProbeSettings {
        url,
        method,
        headers,
        timeout,
        allow_private: file.allow_private,
        completed: condition(&completed.status, &completed.pointer, &completed.equals)
            .context("completed")?,
        reply_status: completed.reply_status.clone().unwrap_or(ReplyStatus::Is(200)),
        reply_body: completed.reply_body.as_ref().map(|text| text.as_str().to_owned()),
        not_executed,
    })
}

fn condition(status: &[u16], at: &Option<Text>, equals: &Option<Text>) -> Result<Condition> {
    ensure!(!status.is_empty(), "status must name at least one");
    let mut statuses = Vec::new();
    for status in status {
        let known = StatusCode::from_u16(*status);
        statuses.push(known.with_context(|| format!("status: {status} is none"))?);
    }
    let is = match (at, equals) {
        (None, None) => None,
        (Some(at), Some(equals)) => {
            pointer(at)?;
            Some((at.as_str().to_owned(), equals.as_str().to_owned()))
        }
        _ => bail!("pointer and equals belong together"),
    };
    Ok(Condition { status: statuses, is })
}

fn pointer(text: &Text) -> Result<()> {
    let text = text.as_str();
    ensure!(text.starts_with('/'), "`{text}` is not a JSON pointer such as /status");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_filled_and_encoded_and_the_host_cannot_be_changed() {
        let template = Template::parse("https://bank/charges/{operation}?key={key}").expect("good");
        let value =
            |place: &str| Some(if place == "key" { "a b/../c?d&e" } else { "op" }.to_owned());
        let filled = template.fill(value).expect("filled");
        assert_eq!(filled, "https://bank/charges/op?key=a%20b%2F..%2Fc%3Fd%26e");
        for value in ["", ".", ".."] {
            assert_eq!(template.fill(|_| Some(value.to_owned())), None, "{value}");
        }
        for bad in [
            "https://{key}.bank/x",
            "https://bank{key}/x",
            "https://bank:{key}/x",
            "{key}://bank/x",
            "https://user@bank/{key}",
            "https://bank/{other}",
            "https://bank/{key",
            "ftp://bank/{key}",
            "/charges/{key}",
            "https://bank/x#{key}",
            "https://bank/x",
            "https://bank/{scope}/{generation}",
        ] {
            assert!(Template::parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn private_addresses_are_told_from_public_ones() {
        for private in [
            "127.0.0.1",
            "10.1.2.3",
            "192.168.0.1",
            "169.254.169.254",
            "100.64.0.1",
            "0.0.0.0",
            "::1",
            "fe80::1",
            "fd00::1",
            "::ffff:10.0.0.1",
            "::",
            "64:ff9b::10.0.0.1",
            "64:ff9b:1::8.8.8.8",
            "2002:7f00:1::",
            "::127.0.0.1",
            "240.0.0.1",
            "255.255.255.255",
            "198.18.0.1",
            "198.19.255.255",
            "192.0.0.8",
        ] {
            assert!(is_private(private.parse().expect("an address")), "{private}");
        }
        for public in [
            "8.8.8.8",
            "100.128.0.1",
            "172.32.0.1",
            "198.20.0.1",
            "192.0.1.1",
            "2001:4860:4860::8888",
            "64:ff9b::8.8.8.8",
            "2002:808:808::",
        ] {
            assert!(!is_private(public.parse().expect("an address")), "{public}");
        }
    }

    #[test]
    fn addresses_in_urls_are_read_as_the_client_reads_them() {
        for host in ["127.1", "2130706433", "0x7f.1", "[::ffff:127.0.0.1]", "[::1]", "017700000001"]
        {
            let template = Template::parse(&format!("http://{host}/{{key}}")).expect("good");
            let address = template.address().expect("an address");
            assert!(is_private(address), "{host}: {address}");
        }
        for host in ["bank.example", "127.bank"] {
            let template = Template::parse(&format!("http://{host}/{{key}}")).expect("good");
            assert_eq!(template.address(), None, "{host}");
        }
    }

    #[test]
    fn only_a_template_that_names_the_use_tells_a_later_one_apart() {
        for (url, expected) in [
            ("https://bank/{key}", false),
            ("https://bank/{operation}", false),
            ("https://bank/{attempt}", true),
            ("https://bank/{key}?use={generation}", true),
        ] {
            let template = Template::parse(url).expect("good");
            assert!(template.tells_apart(1), "{url}");
            assert_eq!(template.tells_apart(2), expected, "{url}");
        }
    }
}
