//! The proxy between the daemon and a cluster's API.

use core::net::IpAddr;
use std::fmt;

/// A proxy for requests to a cluster's API.
#[derive(Clone, PartialEq, Eq)]
pub struct Proxy {
    /// `http://`, `https://` or `socks5://` with host and port.
    pub url: String,
    /// User name.
    pub username: Option<String>,
    /// Password, which is never printed.
    pub password: Option<String>,
    /// Hosts that are reached without the proxy: an address, an address range, or a domain with all
    /// names in it.
    pub direct: Vec<String>,
}

impl fmt::Debug for Proxy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Proxy")
            .field("url", &self.url)
            .field("username", &self.username)
            .field("password", &self.password.as_ref().map(|_| "…"))
            .field("direct", &self.direct)
            .finish()
    }
}

impl Proxy {
    /// The URL with the credentials.
    pub fn with_credentials(&self) -> String {
        let (Some(username), Some((scheme, host))) = (&self.username, self.url.split_once("://"))
        else {
            return self.url.clone();
        };
        let username = percent_encoded(username);
        match &self.password {
            Some(password) => format!("{scheme}://{username}:{}@{host}", percent_encoded(password)),
            None => format!("{scheme}://{username}@{host}"),
        }
    }

    /// Returns whether requests to a host use the proxy. As with `NO_PROXY`, a domain matches all
    /// names in it, and names are not resolved.
    pub fn is_used_for(&self, host: &str) -> bool {
        let host = host.trim_start_matches('[').trim_end_matches([']', '.']);
        !self.direct.iter().any(|pattern| matches_host(pattern, host))
    }
}

fn matches_host(pattern: &str, host: &str) -> bool {
    if let Ok(address) = host.parse::<IpAddr>() {
        let (range, bits) = pattern.split_once('/').unwrap_or((pattern, ""));
        let Ok(range) = range.parse::<IpAddr>() else {
            return false;
        };
        let (width, address, range) = match (address, range) {
            (IpAddr::V4(address), IpAddr::V4(range)) => {
                (32, u128::from(address.to_bits()), u128::from(range.to_bits()))
            }
            (IpAddr::V6(address), IpAddr::V6(range)) => (128, address.to_bits(), range.to_bits()),
            _ => return false,
        };
        let bits: u32 = bits.parse().unwrap_or(width).min(width);
        // A range of zero bits matches every address.
        return (address ^ range).checked_shr(width - bits).unwrap_or(0) == 0;
    }
    let (pattern, host) = (pattern.to_ascii_lowercase(), host.to_ascii_lowercase());
    let domain = pattern.trim_start_matches('*').trim_start_matches('.');
    let before = host.strip_suffix(domain);
    !domain.is_empty() && before.is_some_and(|prefix| prefix.is_empty() || prefix.ends_with('.'))
}

/// Percent-encodes a string for a URL.
fn percent_encoded(text: &str) -> String {
    let mut encoded = String::new();
    for byte in text.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => {
                encoded.push(char::from(byte));
            }
            _ => encoded.push_str(&format!("%{byte:02X}")),
        }
    }
    encoded
}

#[cfg(test)]
mod tests {
    use super::Proxy;

    fn proxy(direct: &[&str]) -> Proxy {
        Proxy {
            url: "http://bastion:3128".to_owned(),
            username: Some("out@rigger".to_owned()),
            password: Some("p:ä".to_owned()),
            direct: direct.iter().map(|host| (*host).to_owned()).collect(),
        }
    }

    #[test]
    fn listed_hosts_bypass_the_proxy() {
        let listed = proxy(&["10.0.0.0/8", "fd00::/9", "192.0.2.7", ".internal", "example.com"]);
        for host in ["10.1.2.3", "fd7f::1", "[fd00::1]", "192.0.2.7", "api.Internal", "internal"] {
            assert!(!listed.is_used_for(host), "{host}");
        }
        for host in ["a.example.com", "example.com."] {
            assert!(!listed.is_used_for(host), "{host}");
        }
        for host in ["11.0.0.1", "fd80::1", "192.0.2.8", "notexample.com", "com", "::ffff:10.0.0.1"]
        {
            assert!(listed.is_used_for(host), "{host}");
        }
        assert!(!proxy(&["0.0.0.0/0"]).is_used_for("203.0.113.9"));
        assert!(proxy(&[]).is_used_for("10.1.2.3"));
        assert!(proxy(&["", ".", "*"]).is_used_for("a.b"));
    }

    #[test]
    fn proxy_password_appears_only_in_the_url() {
        let proxy = proxy(&[]);
        assert_eq!(proxy.with_credentials(), "http://out%40rigger:p%3A%C3%A4@bastion:3128");
        assert!(!format!("{proxy:?}").contains("p:ä"));
    }
}
