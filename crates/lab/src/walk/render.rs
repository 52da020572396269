//! Walks in a terminal, as one long SVG, and as a page that is stepped through.

use super::{Frame, Walk};
use crate::table::aligned;
use lockstep_plot::{Anchor, Canvas, Title, escape, page};
use std::fmt::Write;

/// For a terminal.
pub fn text(walk: &Walk) -> String {
    let mut text = format!("{}\n", walk.title);
    for frame in &walk.frames {
        let _ = writeln!(text, "\n{}", frame.title);
        for flight in &frame.flights {
            let _ = writeln!(text, "  {}", words(flight));
        }
        text += &aligned(&lines(walk, frame));
    }
    text
}

fn words(flight: &super::Flight) -> String {
    let super::Flight { source, target, what, bytes } = flight;
    let size = if bytes.0 > 0 { format!(", {bytes}") } else { String::new() };
    format!("{source} -> {target}: {what}{size}")
}

/// The table of a frame, with its headings.
fn lines(walk: &Walk, frame: &Frame) -> Vec<Vec<String>> {
    let num_columns = frame.held.first().map_or(0, Vec::len);
    let has_bytes = frame.sent.iter().any(|sent| sent.0 > 0) || walk.column == "chunk";
    let mut heading = vec![walk.row.to_owned()];
    heading.extend((0..num_columns).map(|column| format!("{} {column}", walk.column)));
    heading.extend(has_bytes.then(|| "sent".to_owned()));
    let mut lines = vec![heading];
    for (rank, held) in frame.held.iter().enumerate() {
        let mut line = vec![rank.to_string()];
        line.extend(held.iter().map(|held| held.words.clone()));
        line.extend(has_bytes.then(|| frame.sent[rank].to_string()));
        lines.push(line);
    }
    lines
}

const WIDTH: f64 = 1080.0;
const LEFT: f64 = 90.0;
const TOP: f64 = 84.0;
const ROW: f64 = 34.0;
/// Room to the right for arrows and bytes.
const RIGHT: f64 = 300.0;

fn height(frame: &Frame) -> f64 {
    TOP + ROW * frame.held.len() as f64 + 30.0
}

/// One frame as a picture: shades say how much of a sum is there, arrows who sends to whom.
fn picture(walk: &Walk, frame: &Frame) -> String {
    let cells = if walk.column == "chunk" {
        "in the cells: whose parts are there"
    } else {
        "in the cells: what is done now, and what is kept"
    };
    let below = format!("{} · {} messages, as arrows · {cells}", frame.title, frame.flights.len());
    let mut canvas = Canvas::new((WIDTH, height(frame)), &Title::new(walk.title.as_str(), below));
    let num_columns = frame.held.first().map_or(1, Vec::len).max(1) as f64;
    let width = (WIDTH - LEFT - RIGHT) / num_columns;
    let middle = |rank: usize| TOP + ROW * (rank as f64 + 0.5);
    for (rank, held) in frame.held.iter().enumerate() {
        let name = format!("{} {rank}", walk.row);
        canvas.text((LEFT - 8.0, middle(rank) + 4.0), Anchor::End, &name);
        for (column, held) in held.iter().enumerate() {
            let level = |from: f64, to: f64| (from + held.share * (to - from)) as u8;
            let fill = format!(
                "#{:02x}{:02x}{:02x}",
                level(250.0, 33.0),
                level(250.0, 102.0),
                level(250.0, 172.0)
            );
            let place = (LEFT + width * column as f64, middle(rank) - ROW / 2.0 + 2.0);
            canvas.bar(place, (width - 2.0, ROW - 4.0), &fill, "", &held.words);
            let ink = if held.share > 0.6 { "fill=\"white\"" } else { "" };
            let center = (place.0 + width / 2.0, middle(rank) + 4.0);
            canvas.styled(center, Anchor::Middle, ink, &held.words);
        }
        if frame.sent.iter().any(|sent| sent.0 > 0) {
            let sent = format!("sent {}", frame.sent[rank]);
            canvas.text((WIDTH - 110.0, middle(rank) + 4.0), Anchor::Start, &sent);
        }
    }
    for column in 0..num_columns as usize {
        let x = LEFT + width * (column as f64 + 0.5);
        canvas.text((x, TOP - 8.0), Anchor::Middle, &format!("{} {column}", walk.column));
    }
    for (index, flight) in frame.flights.iter().enumerate() {
        // Arrows stand side by side, so that none hides another.
        let x = WIDTH - RIGHT + 16.0 + (index % 10) as f64 * 16.0;
        let (from, to) = (middle(flight.source), middle(flight.target));
        canvas.line((x, from), (x, to), "#d55e00");
        let tip = if to > from { -7.0 } else { 7.0 };
        canvas.line((x - 4.0, to + tip), (x, to), "#d55e00");
        canvas.line((x + 4.0, to + tip), (x, to), "#d55e00");
        canvas.marker((x, from), 1, true, &words(flight));
    }
    canvas.finish()
}

/// All frames, one below the other.
pub fn svg(walk: &Walk) -> String {
    let all: f64 = walk.frames.iter().map(height).sum();
    let mut svg =
        format!("<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {all}\">\n");
    let mut y = 0.0;
    for frame in &walk.frames {
        // A picture inside a picture has a place and a size of its own.
        let inner = picture(walk, frame);
        let placed =
            format!("<svg x=\"0\" y=\"{y}\" width=\"{WIDTH}\" height=\"{}\" ", height(frame));
        svg += &inner.replacen("<svg ", &placed, 1);
        y += height(frame);
    }
    svg + "</svg>\n"
}

/// A page with a button for each direction, and arrow keys.
pub fn html(walk: &Walk) -> String {
    let item = |flight: &super::Flight| format!("<li>{}</li>", escape(&words(flight)));
    let section = |frame: &Frame| {
        let list = frame.flights.iter().map(item).collect::<Vec<_>>().concat();
        format!("<section hidden>{}<ul>{list}</ul></section>\n", picture(walk, frame))
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
