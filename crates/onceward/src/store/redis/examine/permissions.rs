//! Whether this user may do what the store does. The server says so for each command, and none is run.

use redis::{FromRedisValue as _, RedisError};

use super::{Finding, of};
use crate::store::redis::link::{Failed, Link};

const NAME: &str = "permissions";

/// Stands for a key of ours.
const KEY: &str = "KEY";

/// What scripts and calls do, each with as many words as it needs.
const NEEDED: [&[&str]; 27] = [
    &["DEL", KEY],
    &["EXISTS", KEY],
    &["GET", KEY],
    &["HDEL", KEY, "f"],
    &["HEXISTS", KEY, "f"],
    &["HGET", KEY, "f"],
    &["HGETALL", KEY],
    &["HINCRBY", KEY, "f", "1"],
    &["HKEYS", KEY],
    &["HLEN", KEY],
    &["HMGET", KEY, "f"],
    &["HSET", KEY, "f", "1"],
    &["HSETNX", KEY, "f", "1"],
    &["HVALS", KEY],
    &["INCR", KEY],
    &["INFO"],
    &["PING"],
    &["SET", KEY, "1"],
    &["TIME"],
    &["ZADD", KEY, "1", "m"],
    &["ZCARD", KEY],
    &["ZCOUNT", KEY, "0", "1"],
    &["ZRANGE", KEY, "0", "1"],
    &["ZRANGEBYSCORE", KEY, "0", "1"],
    &["ZREM", KEY, "m"],
    &["ZREVRANGEBYSCORE", KEY, "1", "0"],
    &["CLUSTER", "SLOTS"],
];

/// Answers with the first word of each line that this user may not run. A script of its own, since a user
/// of the store needs no right to ask about rights, but those to run scripts.
const ASK: &str = "#!lua flags=no-writes,allow-oom
local refused = {}
for _, line in ipairs(ARGV) do
    local words = {}
    for word in string.gmatch(line, '%S+') do words[#words + 1] = word end
    if not redis.acl_check_cmd(unpack(words)) then refused[#refused + 1] = words[1] end
end
return refused";

pub(super) async fn permissions(server: &Link, key: &[u8], cluster: bool) -> Finding {
    let needed = || NEEDED.iter().filter(|words| cluster || words[0] != "CLUSTER");
    let refused = match refused(server, key, needed()).await {
        Ok(refused) => refused,
        Err(error) => return Finding::failed(NAME, of(server, &error.to_string())),
    };
    let on_keys = needed().filter(|words| words.contains(&KEY)).count();
    let found = match refused.len() {
        0 => return Finding::ok(NAME, of(server, "all that the store needs")),
        count if count == on_keys => {
            format!("missing: the keys like {}", String::from_utf8_lossy(key))
        }
        _ => format!("missing: {}", refused.join(", ")),
    };
    Finding::broken(NAME, of(server, &found), "grant them to the user that the store connects as")
}

async fn refused<'a>(
    server: &Link,
    key: &[u8],
    needed: impl Iterator<Item = &'a &'a [&'a str]>,
) -> Result<Vec<String>, RedisError> {
    let mut load = redis::cmd("SCRIPT");
    load.arg("LOAD").arg(ASK);
    let script = match server.command(&load).await {
        Ok(script) => String::from_redis_value(script)?,
        Err(failed) => return may_not(failed, "SCRIPT LOAD"),
    };
    let mut ask = redis::cmd("EVALSHA");
    ask.arg(script).arg(0);
    for words in needed {
        let line: Vec<u8> = words.iter().fold(Vec::new(), |mut line, word| {
            line.extend(if *word == KEY { key } else { word.as_bytes() });
            line.push(b' ');
            line
        });
        ask.arg(line);
    }
    match server.command(&ask).await {
        Ok(refused) => Ok(Vec::<String>::from_redis_value(refused)?),
        Err(failed) => may_not(failed, "EVALSHA"),
    }
}

fn may_not(failed: Failed, what: &str) -> Result<Vec<String>, RedisError> {
    let (Failed::Sent(error) | Failed::NotSent(error)) = failed;
    match error.code() {
        Some("NOPERM") => Ok(vec![what.to_owned()]),
        _ => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::store::redis::script::SOURCES;

    #[test]
    fn what_scripts_do_is_what_is_asked_about() {
        let asked: BTreeSet<&str> = NEEDED.iter().map(|words| words[0]).collect();
        for source in SOURCES {
            for call in source.split("call('").skip(1) {
                let command = call.split('\'').next().expect("a word");
                assert!(asked.contains(command), "{command}");
            }
        }
        assert!(!asked.contains("FLUSHALL"));
    }
}
