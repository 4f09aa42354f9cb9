"""Program + Target -> Plan: stages, tiles, memory levels, workers, hand-offs."""
