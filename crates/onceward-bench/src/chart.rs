//! A chart of ratios: bars with their spread, readable on light and dark pages.

use std::{fmt::Write as _, fs, path::PathBuf};

use anyhow::{Context as _, ensure};
use clap::Args;
use serde::{Deserialize, Serialize};

/// What is asked for.
#[derive(Args)]
pub(crate) struct Options {
    /// What `--json` wrote, of one run or of several. Of what is in more than one the last is drawn.
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
}

/// Who is compared with whom in a chart, and what is said about it.
pub(crate) struct Shown {
    pub(crate) ours: &'static str,
    pub(crate) other: &'static str,
    /// What comes after the workload, above the bars.
    pub(crate) group: &'static str,
    /// Before the bar.
    pub(crate) label: &'static str,
}

/// A ratio of requests/s with its spread.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Bar {
    pub(crate) group: String,
    pub(crate) label: String,
    pub(crate) median: f64,
    pub(crate) min: f64,
    pub(crate) max: f64,
    /// Requests/s of both sides.
    pub(crate) ours: f64,
    pub(crate) other: f64,
}

/// Under which name bars are in the files.
pub(crate) const NAME: &str = "chart";

/// The chart of earlier runs.
pub(crate) fn redraw(options: &Options) -> anyhow::Result<String> {
    let mut bars = Vec::new();
    for file in &options.files {
        let name = file.display();
        let text = fs::read_to_string(file).with_context(|| name.to_string())?;
        let found: serde_json::Value = serde_json::from_str(&text)?;
        let some = found.get(NAME).with_context(|| format!("{name} has no \"{NAME}\""))?;
        merge(&mut bars, Vec::deserialize(some)?);
    }
    ensure!(!bars.is_empty(), "nothing was compared in these runs");
    Ok(svg(&bars))
}

fn merge(bars: &mut Vec<Bar>, some: Vec<Bar>) {
    for bar in some {
        match bars.iter_mut().find(|known| (&known.group, &known.label) == (&bar.group, &bar.label))
        {
            Some(known) => *known = bar,
            None => bars.push(bar),
        }
    }
}

const WIDTH: f64 = 820.0;
const MARGIN: f64 = 20.0;
/// Where bars begin, and how far the longest of a group comes.
const LEFT: f64 = 196.0;
const RIGHT: f64 = 560.0;
const LINE: f64 = 24.0;
const TOP: f64 = 56.0;

const STYLE: &str = "text { font: 13px system-ui, -apple-system, 'Segoe UI', sans-serif; \
    fill: #1f2328; font-variant-numeric: tabular-nums } \
    .title { font-size: 16px; font-weight: 600 } .head { font-weight: 600 } \
    .value { font-weight: 600 } .small { font-size: 11.5px; fill: #59636e } \
    .card { fill: #ffffff; stroke: #d1d9e0 } .rule { stroke: #d1d9e0 } \
    .bar { fill: #54a3ff } .less { fill: #b6c2cf } \
    .spread { stroke: #0a3069; stroke-width: 1.5; fill: none } \
    .one { stroke: #59636e; stroke-dasharray: 2 3 } \
    @media (prefers-color-scheme: dark) { text { fill: #e6edf3 } .small { fill: #9198a1 } \
    .card { fill: #0d1117; stroke: #3d444d } .rule { stroke: #3d444d } .bar { fill: #1f6feb } \
    .less { fill: #57606a } .spread { stroke: #cae8ff } .one { stroke: #9198a1 } }";

/// The bars, under a line for each of their groups. Each group has a scale of its own: some are many
/// times as fast, others are shares of a limit.
pub(crate) fn svg(bars: &[Bar]) -> String {
    let mut groups: Vec<(&str, Vec<&Bar>)> = Vec::new();
    for bar in bars {
        match groups.iter_mut().find(|(name, _)| *name == bar.group) {
            Some((_, group)) => group.push(bar),
            None => groups.push((&bar.group, vec![bar])),
        }
    }
    let mut drawn = String::new();
    let mut y = TOP;
    for (name, group) in &groups {
        y = draw_group(&mut drawn, name, group, y);
    }
    let height = y + 16.0;
    let (card_width, card_height, right) = (WIDTH - 1.0, height - 1.0, WIDTH - MARGIN);
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height:.0}\" role=\"img\" \
         aria-label=\"Requests per second of Onceward by those of others\">\n<style>{STYLE}</style>\n\
         <rect class=\"card\" x=\"0.5\" y=\"0.5\" width=\"{card_width}\" \
         height=\"{card_height:.0}\" rx=\"8\"/>\n\
         <text class=\"title\" x=\"{MARGIN}\" y=\"30\">Requests per second, Onceward divided by others\
         </text>\n\
         <text class=\"small\" x=\"{MARGIN}\" y=\"49\">Bar: median of the rounds. Line: smallest and \
         largest. Dotted: 1, as fast.</text>\n\
         <text class=\"small\" x=\"{right}\" y=\"49\" text-anchor=\"end\">requests/s of both</text>\n\
         {drawn}</svg>\n"
    )
}

/// Returns where it ends.
fn draw_group(drawn: &mut String, name: &str, bars: &[&Bar], from: f64) -> f64 {
    let longest = bars.iter().map(|bar| bar.max).fold(1.0, f64::max);
    let x = |ratio: f64| LEFT + ratio / longest * (RIGHT - LEFT);
    let (rule, head) = (from + 8.0, from + LINE + 4.0);
    let _ = writeln!(
        drawn,
        "<line class=\"rule\" x1=\"{MARGIN}\" x2=\"{:.1}\" y1=\"{rule:.1}\" y2=\"{rule:.1}\"/>\
         <text class=\"head\" x=\"{MARGIN}\" y=\"{head:.1}\">{}</text>",
        WIDTH - MARGIN,
        text(name)
    );
    let mut y = head + 4.0;
    for bar in bars {
        y += LINE;
        draw(drawn, bar, y, x);
    }
    let (one, above, below) = (x(1.0), head + 10.0, y + 6.0);
    let _ = writeln!(
        drawn,
        "<line class=\"one\" x1=\"{one:.1}\" x2=\"{one:.1}\" y1=\"{above:.1}\" y2=\"{below:.1}\"/>"
    );
    y + 4.0
}

fn draw(drawn: &mut String, bar: &Bar, y: f64, x: impl Fn(f64) -> f64) {
    let Bar { label, median, min, max, ours, other, .. } = bar;
    let (end, from, to) = (x(*median), x(*min), x(*max));
    let (top, middle, bottom) = (y - 8.5, y - 4.5, y - 0.5);
    let class = if *median < 1.0 { "bar less" } else { "bar" };
    let _ = writeln!(
        drawn,
        "<text x=\"{MARGIN}\" y=\"{y:.1}\">{}</text>\
         <rect class=\"{class}\" x=\"{LEFT}\" y=\"{:.1}\" width=\"{:.1}\" height=\"15\" rx=\"2\"/>\
         <path class=\"spread\" d=\"M{from:.1} {top:.1}V{bottom:.1}M{from:.1} {middle:.1}H{to:.1}\
         M{to:.1} {top:.1}V{bottom:.1}\"/>\
         <text class=\"value\" x=\"{:.1}\" y=\"{y:.1}\">{median:.2}</text>\
         <text class=\"small\" x=\"{:.1}\" y=\"{y:.1}\" text-anchor=\"end\">{} by {}</text>",
        text(label),
        y - 12.0,
        end - LEFT,
        end.max(to) + 8.0,
        WIDTH - MARGIN,
        thousands(*ours),
        thousands(*other),
    );
}

/// `12,345`
fn thousands(number: f64) -> String {
    let digits = format!("{number:.0}");
    let mut text = String::new();
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

fn text(plain: &str) -> String {
    plain.replace('&', "&amp;").replace('<', "&lt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bar(group: &str, label: &str, median: f64) -> Bar {
        let (group, label) = (group.to_owned(), label.to_owned());
        Bar { group, label, median, min: 0.5, max: 4.0, ours: 24_000.0, other: 999.0 }
    }

    #[test]
    fn each_bar_is_drawn_once_under_its_group() {
        let bars =
            [bar("on a file", "a < b", 2.0), bar("raw", "c", 0.7), bar("on a file", "d", 2.5)];
        let drawn = svg(&bars);
        assert_eq!(drawn.matches("<rect class=\"bar").count(), 3);
        assert_eq!(drawn.matches(">on a file</text>").count(), 1);
        assert!(drawn.contains("a &lt; b") && drawn.contains("24,000 by 999"));
        assert_eq!(
            drawn.matches("<rect class=\"bar less\"").count(),
            1,
            "what is slower stands out"
        );
        // Half of the longest, which is as wide as there is room.
        assert!(drawn.contains("width=\"182.0\""));
    }

    #[test]
    fn runs_of_their_own_make_one_chart_and_the_last_one_counts() {
        let folder = tempfile::tempdir().expect("a folder");
        let write = |name: &str, bars: &[Bar]| {
            let file = folder.path().join(name);
            fs::write(&file, serde_json::json!({ NAME: bars }).to_string()).expect("written");
            file
        };
        let early = write("early.json", &[bar("first", "a", 2.0), bar("first", "b", 3.0)]);
        let late = write("late.json", &[bar("first", "a", 2.5), bar("replay", "a", 1.5)]);
        let drawn = redraw(&Options { files: vec![early, late] }).expect("drawn");
        let bars = [bar("first", "a", 2.5), bar("first", "b", 3.0), bar("replay", "a", 1.5)];
        assert_eq!(drawn, svg(&bars));
        let none = write("none.json", &[]);
        assert!(redraw(&Options { files: vec![none] }).is_err(), "a chart of nothing");
    }

    #[test]
    fn numbers_are_grouped() {
        assert_eq!(
            [0.4, 999.0, 1000.0, 1_234_567.0].map(thousands),
            ["0", "999", "1,000", "1,234,567"]
        );
    }
}
