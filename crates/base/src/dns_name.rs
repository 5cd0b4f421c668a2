//! The DNS names that Kubernetes accepts as names of objects (RFC 1123; `IsDNS1123Label` and
//! `IsDNS1123Subdomain` of k8s.io/apimachinery).

const LABEL_MAX: usize = 63;
const SUBDOMAIN_MAX: usize = 253;

/// Returns whether a text is a DNS label, as names of namespaces are: 1 to 63 lower-case letters,
/// digits and `-`, which neither begins nor ends with `-`.
pub fn is_dns_label(text: &str) -> bool {
    let is_permitted =
        |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    (1..=LABEL_MAX).contains(&text.len())
        && text.bytes().all(is_permitted)
        && !text.starts_with('-')
        && !text.ends_with('-')
}

/// Returns whether a text is a DNS subdomain, as names of service accounts are: DNS labels that are
/// separated by dots, at most 253 characters.
pub fn is_dns_subdomain(text: &str) -> bool {
    text.len() <= SUBDOMAIN_MAX && text.split('.').all(is_dns_label)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn label_has_63_lower_case_letters_digits_and_hyphens_inside() {
        let longest = "a".repeat(63);
        for text in ["a", "0", "shop", "a-b", "1--2", "xn--caf-dma", &longest] {
            assert!(is_dns_label(text), "{text}");
        }
        let too_long = "a".repeat(64);
        for text in ["", "-", "-a", "a-", "A", "a_b", "a.b", "a b", "é", "a\n", &too_long] {
            assert!(!is_dns_label(text), "{text:?}");
        }
    }

    #[test]
    fn subdomain_has_labels_and_at_most_253_characters() {
        let longest = ["a".repeat(63), "b".repeat(63), "c".repeat(63), "d".repeat(61)].join(".");
        assert_eq!(longest.len(), 253);
        for text in ["a", "web.front-1", "cluster.local", &longest] {
            assert!(is_dns_subdomain(text), "{text}");
        }
        let too_long = format!("{longest}d");
        let long_label = format!("{}.b", "a".repeat(64));
        for text in ["", ".", "a.", ".a", "a..b", "a.-b", "*.a", "a.B", &long_label, &too_long] {
            assert!(!is_dns_subdomain(text), "{text:?}");
        }
    }
}
