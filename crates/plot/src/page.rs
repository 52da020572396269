//! An HTML page around charts and text. It needs nothing from elsewhere.

use crate::canvas::escape;
use crate::palette::paper;

const STYLE: &str = "body{font-family:sans-serif;max-width:1160px;margin:2em auto;padding:0 1em}\
    svg{width:100%;height:auto;border:1px solid var(--line)}\
    table{border-collapse:collapse;font-size:13px}\
    td,th{padding:3px 10px;text-align:right;border-bottom:1px solid var(--line)}\
    pre{background:var(--page);padding:1em;overflow-x:auto}h2{margin-top:2em}";

/// A page with a heading; `body` is HTML.
pub fn page(title: &str, body: &str) -> String {
    let (title, theme) = (escape(title), paper());
    format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>{title}</title>\n\
         <style>{theme}{STYLE}</style></head>\n<body><h1>{title}</h1>\n{body}</body></html>\n"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_title_is_escaped_and_the_body_is_not() {
        let page = page("a<b", "<p>x</p>");
        assert!(page.contains("<h1>a&lt;b</h1>") && page.contains("<p>x</p>"));
    }
}
