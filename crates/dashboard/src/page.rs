//! The files of the page. They are parts of the program, so no request opens a file.

/// A file of the page.
#[derive(Clone, Copy, Debug)]
pub struct Asset {
    /// Path in an address.
    pub path: &'static str,
    /// Media type.
    pub media_type: &'static str,
    /// Content.
    pub text: &'static str,
}

/// An asset of a path, media type and file.
macro_rules! asset {
    ($path:literal, $media_type:literal, $file:literal) => {
        Asset { path: $path, media_type: $media_type, text: include_str!($file) }
    };
}

/// Path of the style sheet, which is served after the palette.
pub const STYLE_SHEET: &str = "/style.css";

/// Files of all pages.
pub const SHARED: [Asset; 3] = [
    asset!("/style.css", "text/css; charset=utf-8", "../assets/style.css"),
    asset!("/elements.js", "text/javascript; charset=utf-8", "../assets/elements.js"),
    asset!("/icon.svg", "image/svg+xml", "../assets/icon.svg"),
];

/// The page of the runs.
pub const RUN_PAGE: [Asset; 3] = [
    asset!("/", "text/html; charset=utf-8", "../assets/index.html"),
    asset!("/workers.js", "text/javascript; charset=utf-8", "../assets/workers.js"),
    asset!("/app.js", "text/javascript; charset=utf-8", "../assets/app.js"),
];

/// The pages of the planner and of the lab.
pub const TOOL_PAGES: [Asset; 5] = [
    asset!("/plan", "text/html; charset=utf-8", "../assets/plan.html"),
    asset!("/lab", "text/html; charset=utf-8", "../assets/lab.html"),
    asset!("/tools.js", "text/javascript; charset=utf-8", "../assets/tools.js"),
    asset!("/plan.js", "text/javascript; charset=utf-8", "../assets/plan.js"),
    asset!("/lab.js", "text/javascript; charset=utf-8", "../assets/lab.js"),
];

/// The page without its links to the planner and the lab, which are on one line.
pub fn without_tools(html: &str) -> String {
    html.lines().filter(|line| !line.contains("class=\"pages\"")).collect::<Vec<_>>().join("\n")
}

/// Headers of every answer. The page loads scripts, styles and data from its own server only, and
/// no other page can show it or read it.
pub const HEADERS: [(&str, &str); 7] = [
    (
        "content-security-policy",
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; \
         connect-src 'self'; base-uri 'none'; frame-ancestors 'none'; form-action 'none'",
    ),
    ("x-content-type-options", "nosniff"),
    ("referrer-policy", "no-referrer"),
    ("cache-control", "no-store"),
    ("x-frame-options", "DENY"),
    ("cross-origin-opener-policy", "same-origin"),
    ("cross-origin-resource-policy", "same-origin"),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pages_have_nothing_inline_and_nothing_from_elsewhere() {
        let all = || SHARED.iter().chain(&RUN_PAGE).chain(&TOOL_PAGES);
        let (pages, parts): (Vec<_>, Vec<_>) =
            all().partition(|it| it.text.starts_with("<!doctype"));
        assert_eq!(pages.len(), 3);
        for Asset { path, text, .. } in &pages {
            for forbidden in ["<style", " style=", "<script>", "onclick", "http://", "https://"] {
                assert!(!text.contains(forbidden), "{forbidden} in {path}");
            }
            for shared in &SHARED {
                assert!(
                    text.contains(&format!("\"{}\"", shared.path)),
                    "{} in {path}",
                    shared.path
                );
            }
        }
        for Asset { path, text, .. } in parts {
            let is_used = pages.iter().any(|page| page.text.contains(&format!("\"{path}\"")));
            assert!(is_used, "{path} is not used");
            // Texts of a run may be anything: they never become markup or code.
            for forbidden in
                ["innerHTML", "insertAdjacentHTML", "eval(", "document.write", "Function("]
            {
                assert!(!text.contains(forbidden), "{forbidden} in {path}");
            }
        }
    }

    #[test]
    fn a_page_without_tools_has_no_links_to_them() {
        let [page, ..] = RUN_PAGE;
        let links = ["href=\"/plan\"", "href=\"/lab\""];
        assert!(links.iter().all(|link| page.text.contains(link)), "{}", page.text);
        let page = without_tools(page.text);
        assert!(!links.iter().any(|link| page.contains(link)) && page.contains("<header>"));
    }
}
