//! Networks: which peers are trusted.

use std::{
    fmt,
    net::{IpAddr, Ipv6Addr},
    str::FromStr,
};

use anyhow::{Context as _, Result, ensure};

/// A block of addresses, as in `10.0.0.0/8`. IPv4 is kept as mapped into IPv6, so that a peer is
/// recognised in either form.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Cidr {
    network: u128,
    mask: u128,
}

impl Cidr {
    pub(crate) fn contains(&self, address: IpAddr) -> bool {
        as_number(address) & self.mask == self.network
    }
}

impl fmt::Display for Cidr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let length = self.mask.count_ones();
        match Ipv6Addr::from(self.network).to_ipv4_mapped() {
            Some(address) if length >= 96 => write!(f, "{address}/{}", length - 96),
            _ => write!(f, "{}/{length}", Ipv6Addr::from(self.network)),
        }
    }
}

impl FromStr for Cidr {
    type Err = anyhow::Error;

    fn from_str(text: &str) -> Result<Self> {
        let (address, length) = match text.split_once('/') {
            Some((address, length)) => (address, Some(length)),
            None => (text, None),
        };
        let wrong = || format!("`{text}` is not a network such as 10.0.0.0/8 or fd00::/8");
        let address: IpAddr = address.parse().with_context(wrong)?;
        let full: u32 = if address.is_ipv4() { 32 } else { 128 };
        let length: u32 = length.map_or(Ok(full), str::parse).with_context(wrong)?;
        ensure!(length <= full, wrong());
        let host_bits = full - length;
        let mask = u128::MAX.checked_shl(host_bits).unwrap_or(0);
        let network = as_number(address);
        ensure!(
            network & !mask == 0,
            "`{text}` has bits behind its network part; write the first address of the network"
        );
        Ok(Cidr { network, mask })
    }
}

fn as_number(address: IpAddr) -> u128 {
    let address: Ipv6Addr = match address {
        IpAddr::V4(address) => address.to_ipv6_mapped(),
        IpAddr::V6(address) => address,
    };
    address.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn contains(network: &str, address: &str) -> bool {
        let network: Cidr = network.parse().expect(network);
        network.contains(address.parse().expect(address))
    }

    #[test]
    fn a_network_holds_its_addresses_and_no_others() {
        assert!(contains("10.0.0.0/8", "10.255.0.1"));
        assert!(contains("10.0.0.0/8", "::ffff:10.0.0.1"));
        assert!(!contains("10.0.0.0/8", "11.0.0.1"));
        assert!(contains("192.168.1.7", "192.168.1.7"));
        assert!(!contains("192.168.1.7", "192.168.1.8"));
        assert!(contains("fd00::/8", "fd12::1"));
        assert!(!contains("fd00::/8", "fe80::1"));
        assert!(contains("0.0.0.0/0", "203.0.113.9"));
        assert!(!contains("0.0.0.0/0", "2001:db8::1"));
        assert!(contains("::/0", "2001:db8::1"));
    }

    #[test]
    fn a_network_is_shown_as_it_was_written() {
        for text in ["10.0.0.0/8", "192.168.1.7/32", "0.0.0.0/0", "fd00::/8", "::/0"] {
            assert_eq!(text.parse::<Cidr>().expect(text).to_string(), text);
        }
    }

    #[test]
    fn what_is_not_a_network_is_refused() {
        for text in ["", "10.0.0.0/33", "10.0.0.1/8", "ten/8", "10.0.0.0/", "::/129"] {
            assert!(text.parse::<Cidr>().is_err(), "{text}");
        }
    }
}
