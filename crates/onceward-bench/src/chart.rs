//! A chart of ratios: bars with their spread, readable on light and dark pages.

use std::fmt::Write as _;

use crate::report::Bar;

const WIDTH: f64 = 760.0;
/// Where bars begin, and how far the longest may come.
const LEFT: f64 = 300.0;
const RIGHT: f64 = 690.0;
const LINE: f64 = 22.0;
const TOP: f64 = 48.0;

const STYLE: &str = "text { font: 13px system-ui, sans-serif; fill: #1f2328 } \
    .small { font-size: 11px; fill: #59636e } .head { font-weight: 600 } \
    .bar { fill: #2f81f7 } .spread { stroke: #1f2328; stroke-width: 1.5 } \
    .one { stroke: #8c959f; stroke-dasharray: 3 3 } \
    @media (prefers-color-scheme: dark) { text { fill: #e6edf3 } .small { fill: #9198a1 } \
    .spread { stroke: #e6edf3 } .one { stroke: #656c76 } }";

/// The bars, under a line for each of their groups.
pub(crate) fn svg(bars: &[Bar]) -> String {
    let longest = bars.iter().map(|bar| bar.max).fold(1.0, f64::max);
    let x = |ratio: f64| LEFT + ratio / longest * (RIGHT - LEFT);
    let mut drawn = String::new();
    let mut y = TOP;
    let mut group = "";
    for bar in bars {
        if bar.group != group {
            group = &bar.group;
            y += LINE;
            let _ = writeln!(
                drawn,
                "<text class=\"head\" x=\"12\" y=\"{y:.1}\">{}</text>",
                text(group)
            );
        }
        y += LINE;
        draw(&mut drawn, bar, y, x);
    }
    let height = y + 24.0;
    let (one, below) = (x(1.0), y + 8.0);
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height:.0}\" role=\"img\" \
         aria-label=\"Requests per second of Onceward by those of others\">\n<style>{STYLE}</style>\n\
         <text class=\"head\" x=\"12\" y=\"20\">Requests per second, Onceward by others</text>\n\
         <text class=\"small\" x=\"12\" y=\"38\">Median of the rounds; the line is from the smallest \
         to the largest. 1 is as fast.</text>\n\
         <line class=\"one\" x1=\"{one:.1}\" x2=\"{one:.1}\" y1=\"{TOP}\" y2=\"{below:.1}\"/>\n\
         {drawn}</svg>\n"
    )
}

fn draw(drawn: &mut String, bar: &Bar, y: f64, x: impl Fn(f64) -> f64) {
    let Bar { label, median, min, max, .. } = bar;
    let (end, middle, from, to) = (x(*median), y - 4.5, x(*min), x(*max));
    let _ = writeln!(
        drawn,
        "<text x=\"{:.1}\" y=\"{y:.1}\" text-anchor=\"end\">{}</text>\
         <rect class=\"bar\" x=\"{LEFT}\" y=\"{:.1}\" width=\"{:.1}\" height=\"13\" rx=\"2\"/>\
         <line class=\"spread\" x1=\"{from:.1}\" x2=\"{to:.1}\" y1=\"{middle:.1}\" y2=\"{middle:.1}\"/>\
         <text class=\"small\" x=\"{:.1}\" y=\"{y:.1}\">{median:.2}</text>",
        LEFT - 8.0,
        text(label),
        y - 11.0,
        end - LEFT,
        end.max(to) + 6.0,
    );
}

fn text(plain: &str) -> String {
    plain.replace('&', "&amp;").replace('<', "&lt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_bar_is_drawn_once_under_its_group() {
        let bar = |group: &str, label: &str| Bar {
            group: group.to_owned(),
            label: label.to_owned(),
            median: 2.0,
            min: 1.5,
            max: 4.0,
        };
        let drawn = svg(&[bar("postgres", "a < b"), bar("postgres", "c"), bar("file", "d")]);
        assert_eq!(drawn.matches("<rect").count(), 3);
        assert_eq!(drawn.matches(">postgres</text>").count(), 1);
        assert!(drawn.contains("a &lt; b") && drawn.contains("prefers-color-scheme: dark"));
        // Half of the longest, which is as wide as there is room.
        assert!(drawn.contains("width=\"195.0\""));
    }
}
