"""What PostgreSQL, MySQL and MariaDB share: a table of lease rows, asked for in each one's own words."""
