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

/// All files.
pub const ASSETS: [Asset; 4] = [
    Asset {
        path: "/",
        media_type: "text/html; charset=utf-8",
        text: include_str!("../assets/index.html"),
    },
    Asset {
        path: "/style.css",
        media_type: "text/css; charset=utf-8",
        text: include_str!("../assets/style.css"),
    },
    Asset {
        path: "/app.js",
        media_type: "text/javascript; charset=utf-8",
        text: include_str!("../assets/app.js"),
    },
    Asset {
        path: "/icon.svg",
        media_type: "image/svg+xml",
        text: include_str!("../assets/icon.svg"),
    },
];

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
    fn the_page_has_nothing_inline_and_nothing_from_elsewhere() {
        let text = |path: &str| ASSETS.iter().find(|asset| asset.path == path).unwrap().text;
        let html = text("/");
        for forbidden in ["<style", " style=", "<script>", "onclick", "http://", "https://"] {
            assert!(!html.contains(forbidden), "{forbidden} in index.html");
        }
        for asset in ASSETS.iter().filter(|asset| asset.path != "/") {
            assert!(html.contains(&format!("\"{}\"", asset.path)), "{} is not used", asset.path);
        }
        let script = text("/app.js");
        // Texts of a run may be anything: they never become markup or code.
        for forbidden in ["innerHTML", "insertAdjacentHTML", "eval(", "document.write", "Function("]
        {
            assert!(!script.contains(forbidden), "{forbidden} in app.js");
        }
    }
}
