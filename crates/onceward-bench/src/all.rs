//! Everything that is quoted: the commands with what they are given, so that each can be run alone too.

use clap::Parser as _;

use crate::{Arguments, Findings, instructions};

/// At least five rounds of ten seconds, which is what the commands do unless told otherwise. Of the stores
/// and of the gateway only those that most will use are measured with other numbers of connections.
const QUOTED: &[&str] = &[
    INSTRUCTIONS,
    "postgres --connections 64,256,8,1",
    "postgres-size",
    "gateway",
    "gateway --connections 256,8,1 --contestants proxy,unprotected,memory,file,postgres",
    "stores",
    "stores --connections 256,8,1 --stores memory,file,postgres --contestants raw,echo,http",
    "growth",
    "reap",
];

const INSTRUCTIONS: &str = "instructions";

/// To see that all works, and what comes out.
const QUICK: &[&str] = &[
    INSTRUCTIONS,
    "postgres --rounds 2 --seconds 1 --warm-up 0.3 --pools 16 --keys 500",
    "postgres-size --sizes 500,2000 --rounds 2 --seconds 1 --warm-up 0.3 --keys 100",
    "gateway --rounds 2 --seconds 1 --warm-up 0.3 --keys 500",
    "stores --rounds 2 --seconds 1 --warm-up 0.3 --keys 500 --calibration 0.3",
    "growth --sizes 0,1000,5000 --rounds 2 --seconds 1 --requests 300 --sustained 10 --waiters 200 \
     --operations 500",
    "reap --records 2000 --seconds 1 --cycles 2 --cycle-records 1000",
];

pub(crate) fn run(quick: bool, findings: &mut Findings<'_>) -> anyhow::Result<()> {
    for line in if quick { QUICK } else { QUOTED } {
        if *line == INSTRUCTIONS && !instructions::can_be_counted() {
            eprintln!(
                "onceward-bench {line}: left out, for it needs valgrind, which is not installed"
            );
            continue;
        }
        eprintln!("onceward-bench {line}");
        let words = std::iter::once("onceward-bench").chain(line.split_whitespace());
        let command = Arguments::try_parse_from(words)?.what;
        if let Some((name, finding)) = command.map(|what| what.run()).transpose()?.flatten() {
            findings.add(name, &*finding)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_line_is_a_command() {
        for line in QUOTED.iter().chain(QUICK) {
            let words = std::iter::once("onceward-bench").chain(line.split_whitespace());
            let read = Arguments::try_parse_from(words);
            assert!(read.is_ok_and(|read| read.what.is_some()), "{line}");
        }
    }
}
