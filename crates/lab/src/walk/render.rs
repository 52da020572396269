//! Rendering of walks: terminal text, one SVG with all rounds, HTML page with step buttons.

use super::{Frame, Walk};
use crate::description::Unit;
use crate::table::aligned;
use lockstep_config::units::Bytes;
use lockstep_plot::{Anchor, Canvas, Title, escape, page, palette};
use std::fmt::Write;

/// Renders a walk as text.
pub fn text(walk: &Walk) -> String {
    let mut text = format!("{}\n", walk.title);
    for frame in &walk.frames {
        let _ = writeln!(text, "\n{}", frame.title);
        for message in &frame.messages {
            let _ = writeln!(text, "  {}", message_text(message));
        }
        text += &aligned(&lines(walk, frame));
    }
    text
}

/// Bytes on a wire, in SI units.
fn wire_bytes(bytes: Bytes) -> String {
    Unit::Bytes.show(bytes.0 as f64)
}

/// A message on one line.
pub fn message_text(message: &super::Message) -> String {
    let super::Message { source, target, content, bytes } = message;
    let size = if bytes.0 > 0 { format!(", {}", wire_bytes(*bytes)) } else { String::new() };
    format!("{source} -> {target}: {content}{size}")
}

/// Table of a frame, with headings.
fn lines(walk: &Walk, frame: &Frame) -> Vec<Vec<String>> {
    let num_columns = frame.held.first().map_or(0, Vec::len);
    let has_bytes = walk.frames.iter().flat_map(|frame| &frame.sent).any(|sent| sent.0 > 0);
    let mut heading = vec![walk.row.to_owned()];
    heading.extend((0..num_columns).map(|column| format!("{} {column}", walk.column)));
    heading.extend(has_bytes.then(|| "sent".to_owned()));
    let mut lines = vec![heading];
    for (rank, held) in frame.held.iter().enumerate() {
        let mut line = vec![rank.to_string()];
        line.extend(held.iter().map(|held| held.text.clone()));
        line.extend(has_bytes.then(|| wire_bytes(frame.sent[rank])));
        lines.push(line);
    }
    lines
}

const WIDTH: f64 = 1080.0;
const LEFT: f64 = 90.0;
const TOP: f64 = 84.0;
const ROW: f64 = 34.0;
/// Width of the area for arrows and bytes.
const RIGHT: f64 = 300.0;

fn height(frame: &Frame) -> f64 {
    TOP + ROW * frame.held.len() as f64 + 30.0
}

/// Height of the middle of a rank's row.
fn middle(rank: usize) -> f64 {
    TOP + ROW * (rank as f64 + 0.5)
}

/// Arrow of a message in the picture of its frame, which a page can let move.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Arrow {
    /// Place along the horizontal axis.
    pub x: f64,
    /// Height of the sender.
    pub from: f64,
    /// Height of the receiver.
    pub to: f64,
}

/// Arrows of the messages of a frame, side by side to avoid overlap.
pub fn arrows(frame: &Frame) -> Vec<Arrow> {
    let arrow = |(index, message): (usize, &super::Message)| Arrow {
        x: WIDTH - RIGHT + 16.0 + (index % 10) as f64 * 16.0,
        from: middle(message.source),
        to: middle(message.target),
    };
    frame.messages.iter().enumerate().map(arrow).collect()
}

/// Messages of all rounds as comma-separated values.
pub fn csv(walk: &Walk) -> String {
    let mut text = "round,title,source,target,content,bytes\n".to_owned();
    for (round, frame) in walk.frames.iter().enumerate() {
        for super::Message { source, target, content, bytes } in &frame.messages {
            let (title, content) = (quoted(&frame.title), quoted(content));
            let _ = writeln!(text, "{round},{title},{source},{target},{content},{}", bytes.0);
        }
    }
    text
}

fn quoted(text: &str) -> String {
    format!("\"{}\"", text.replace('"', "\"\""))
}

/// Renders one frame as SVG: shades show completeness, arrows show messages.
pub fn frame_svg(walk: &Walk, frame: &Frame) -> String {
    let below =
        format!("{} · {} messages, as arrows · {}", frame.title, frame.messages.len(), walk.cells);
    let mut canvas = Canvas::new((WIDTH, height(frame)), &Title::new(walk.title.as_str(), below));
    let num_columns = frame.held.first().map_or(1, Vec::len).max(1) as f64;
    let width = (WIDTH - LEFT - RIGHT) / num_columns;
    for (rank, held) in frame.held.iter().enumerate() {
        let name = format!("{} {rank}", walk.row);
        canvas.text((LEFT - 8.0, middle(rank) + 4.0), Anchor::End, &name);
        for (column, held) in held.iter().enumerate() {
            let fill = palette::blend(palette::COMPLETE, held.share);
            let place = (LEFT + width * column as f64, middle(rank) - ROW / 2.0 + 2.0);
            canvas.bar(place, (width - 2.0, ROW - 4.0), &fill, "", &held.text);
            let ink = if held.share > 0.6 { "fill=\"white\"" } else { "" };
            let center = (place.0 + width / 2.0, middle(rank) + 4.0);
            canvas.styled(center, Anchor::Middle, ink, &held.text);
        }
        if frame.sent.iter().any(|sent| sent.0 > 0) {
            let sent = format!("sent {}", wire_bytes(frame.sent[rank]));
            canvas.text((WIDTH - 110.0, middle(rank) + 4.0), Anchor::Start, &sent);
        }
    }
    for column in 0..num_columns as usize {
        let x = LEFT + width * (column as f64 + 0.5);
        canvas.text((x, TOP - 8.0), Anchor::Middle, &format!("{} {column}", walk.column));
    }
    for (message, Arrow { x, from, to }) in frame.messages.iter().zip(arrows(frame)) {
        canvas.line((x, from), (x, to), palette::colour(1));
        let tip = if to > from { -7.0 } else { 7.0 };
        canvas.line((x - 4.0, to + tip), (x, to), palette::colour(1));
        canvas.line((x + 4.0, to + tip), (x, to), palette::colour(1));
        canvas.marker((x, from), 1, true, &message_text(message));
    }
    canvas.finish()
}

/// Renders all frames below each other.
pub fn svg(walk: &Walk) -> String {
    let all: f64 = walk.frames.iter().map(height).sum();
    let mut svg =
        format!("<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {all}\">\n");
    let mut y = 0.0;
    for frame in &walk.frames {
        // A nested SVG needs its own position and size.
        let inner = frame_svg(walk, frame);
        let placed =
            format!("<svg x=\"0\" y=\"{y}\" width=\"{WIDTH}\" height=\"{}\" ", height(frame));
        svg += &inner.replacen("<svg ", &placed, 1);
        y += height(frame);
    }
    svg + "</svg>\n"
}

/// Renders an HTML page to step through with buttons or arrow keys.
pub fn html(walk: &Walk) -> String {
    let item = |message: &super::Message| format!("<li>{}</li>", escape(&message_text(message)));
    let section = |frame: &Frame| {
        let list = frame.messages.iter().map(item).collect::<Vec<_>>().concat();
        format!("<section hidden>{}<ul>{list}</ul></section>\n", frame_svg(walk, frame))
    };
    let frames = walk.frames.iter().map(section).collect::<Vec<_>>().concat();
    let script = "<script>const s=[...document.querySelectorAll('section')];let i=0;\
        function go(d){s[i].hidden=true;i=Math.max(0,Math.min(s.length-1,i+d));s[i].hidden=false;\
        document.getElementById('at').textContent=(i+1)+' of '+s.length}go(0);\
        onkeydown=e=>{if(e.key=='ArrowRight')go(1);if(e.key=='ArrowLeft')go(-1)}</script>\n";
    let buttons = "<p><button onclick=\"go(-1)\">back</button> <button onclick=\"go(1)\">step\
        </button> <span id=\"at\"></span></p>\n";
    page(&walk.title, &format!("{buttons}{frames}{script}"))
}
